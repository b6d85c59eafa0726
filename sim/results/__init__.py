"""A run on disk: the directory that a replay writes, and what reads it."""
