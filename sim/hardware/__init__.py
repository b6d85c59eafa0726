"""GPUs and models as cost models see them: published figures, read from data files."""
