"""A model on its device: loading it, and one forward pass with its recordings."""
