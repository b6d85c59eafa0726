"""What a client chose, as it stands in the log: short, and without control characters.

Law: no line of the log grows with what a client sends.
"""

MOST_LOGGED = 256
"""Characters of an id, a name or a path that the log shows."""


def logged(text: str) -> str:
    """Return the first 256 characters, escaped if they would steer the terminal that shows the log."""
    short = text if len(text) <= MOST_LOGGED else f"{text[:MOST_LOGGED]}…"
    return short if short.isprintable() else repr(short)
