"""Traces: which requests come when, and how long. Reading every format, refusing every malformed row."""
