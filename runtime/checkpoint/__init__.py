"""Published model folder: its configuration, its weights, and what is supported."""
