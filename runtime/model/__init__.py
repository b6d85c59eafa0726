"""A model on its device: loading, forward passes, and recorded passes."""
