"""Load on a server that speaks OpenAI's API: clients on the wall clock, and what they saw.

The mirror of `sim/client.py`: rows of a trace go in, an outcome of each comes out. Law: a request is due when
its trace says, whatever became of the others, and its times count from there; how much later it was
really sent is measured, too. Nothing here computes a model.
"""
