"""A model folder as it is published: its configuration, its weights, and what of both is supported."""
