"""Emulation: the real server in front of an absent GPU, with prepared answers."""
