"""A cost model from what was observed."""
