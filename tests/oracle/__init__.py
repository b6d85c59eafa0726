"""Comparison with vLLM's own scheduler on fresh random traces."""
