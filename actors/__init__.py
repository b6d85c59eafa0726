"""Actors of an LLM server: messages, mailboxes, and the pure core that makes their decisions.

`runtime` runs the graph with real models, `sim` simulates it; neither is imported here. `graph.py` connects
the actors; a backend, a clock and a table of fates are passed in. To add an actor, write its messages
(`messages/`) and its `handle`, and start it in `graph.py`.
"""

if __name__ != "sundog.actors":  # Python found this folder by itself: each module would exist twice.
    raise ImportError(f"{__name__} is a folder of Sundog's source: import sundog.actors")
