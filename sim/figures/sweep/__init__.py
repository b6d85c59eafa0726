"""Experiments: replications of settings over seeds, their figures, and their ranking."""
