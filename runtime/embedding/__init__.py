"""Embedding models: how a folder declares one, the forward pass, and the backend."""
