"""Traces: when requests arrive, and how long they are, in a dozen formats (traces/README.md).

A malformed row is refused with file, line and column. To add a format, write its reader and enter it in
`read.py`.

Example:
    >>> from sundog.sim.trace.read import read_trace
    >>> trace = read_trace("traces/chat-poisson-2rps-5min.jsonl.gz")
    >>> next(iter(trace)).num_output_tokens > 0
    True
"""
