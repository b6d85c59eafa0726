"""Decisions on fresh random traces, ours beside those of vLLM's own scheduler."""
