"""Shortening of clients' text for the log, without control characters.

Law: the length of a log line does not depend on what a client sends.
"""

MOST_LOGGED = 256
"""Characters of an id, a name or a path that the log shows."""


def logged(text: str) -> str:
    """Return the first 256 characters, with control characters escaped."""
    short = text if len(text) <= MOST_LOGGED else f"{text[:MOST_LOGGED]}…"
    return short if short.isprintable() else repr(short)
