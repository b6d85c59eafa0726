"""Traces: who asks when, for how much. Reading every format, refusing every malformed row."""
