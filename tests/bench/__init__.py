"""Benchmarks: each module prints a table of figures and asserts nothing about time."""
