"""Answers restricted to a schema, a regular expression or a grammar, by llguidance (the extra `structured`).

A constraint is first tried in a process of its own (`trial`), then compiled once for the model's tokenizer
and kept (`grammars`). Each request has a matcher (`matcher`), which follows the tokens so far and fills the
bits of those that may come next; the sampler excludes the others (`runtime/sampling/constrained.py`).
"""
