"""Emulation: the real server in front of a GPU that is not there, with answers that are not computed."""
