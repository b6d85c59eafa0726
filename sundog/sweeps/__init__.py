"""Sweeps: every setting with every seed, in processes, and the output folder."""
