"""Functional core: all decisions, as pure state machines over the standard library alone.

Nothing here awaits, reads a clock or logs, so that every world decides alike. `step/` plans steps and applies
their results; `blocks/` is the KV cache; `queue/` orders requests; `policies/`, `routers/` and `scalers.py`
are where users add their own.
"""
