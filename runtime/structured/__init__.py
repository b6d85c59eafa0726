"""Answers that keep to a schema, a regular expression or a grammar, by llguidance (the extra `structured`).

A constraint is tried in a process of its own first (`trial`), then compiled once for the model's tokenizer
and kept (`grammars`). Each request has a matcher (`matcher`), which knows the tokens said so far and fills
the bits of those that may come next; the sampler rules out the others (`runtime/sampling/constrained.py`).
"""
