"""Step times from measured kernels (`model.py`), distilled from a published package."""
