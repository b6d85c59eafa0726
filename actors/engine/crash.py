"""Reason of an engine core's crash, in one line or one block, from all raised exceptions."""

import traceback
from collections.abc import Iterator

from sundog.actors.kernel.actor import ActorDied

MOST_FRAMES = 6
MOST_CHARACTERS = 300


def root_cause(error: BaseException) -> BaseException:
    """Return the error that caused the others: actors that waited for a dead one report only its death."""
    leaves = list(_leaves(error))
    return next((leaf for leaf in leaves if not isinstance(leaf, ActorDied)), leaves[0])


def summary(error: BaseException) -> str:
    """Return the cause of a crash in one line."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {_cut(words)}" if words else type(error).__name__


def block(error: BaseException) -> str:
    """Return where the cause was raised, innermost call last, and what its actor was doing."""
    frames = traceback.extract_tb(error.__traceback__)[-MOST_FRAMES:]
    lines = [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
    lines += [_cut(note) for note in getattr(error, "__notes__", ())]
    return "\n".join(f"    {line}" for line in lines)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _leaves(part)
    else:
        yield error


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"
