"""GPUs and models for cost models: published figures, read from data files."""
