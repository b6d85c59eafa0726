"""Sweeps: every setting with every seed, in processes, and the folder that is kept of them."""
