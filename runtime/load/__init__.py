"""Load generator for OpenAI-compatible servers: clients in real time, and their measurements.

The mirror of `sim/client.py`: rows of a trace go in, an outcome of each comes out. Law: a request is due at
its time in the trace, whatever happens to the others, and its times count from there; its actual sending time
is recorded, too. Nothing here computes a model.
"""
