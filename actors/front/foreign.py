"""Containment of errors in foreign code that handles client data: tokenizers, templates, grammars, parsers.

Law: whatever foreign code raises is the error of that one request. Libraries in Rust raise PanicException,
which is not an Exception: `except Exception` would let it through, and one prompt would end the server.
"""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

OWN_EXITS: tuple[type[BaseException], ...] = (KeyboardInterrupt, SystemExit, GeneratorExit)
try:
    from trio import Cancelled
except ModuleNotFoundError:  # the engine's own tests take torch, transformers and pytest alone
    pass
else:
    OWN_EXITS = (*OWN_EXITS, Cancelled)
"""What Python and Trio end a task with; it is never a client's error."""


class ForeignFailure(Exception):
    """Failure of a library that is not an Exception, such as a panic in Rust."""


def contained(work: Callable[[], T]) -> T:
    """Return the result of `work`; raise ForeignFailure for errors that are neither an Exception nor an exit.

    Example: `contained(lambda: tokenizer.encode(text))`.
    """
    try:
        return work()
    except Exception:
        raise
    except OWN_EXITS:
        raise
    except BaseException as panic:
        raise failure(panic) from panic


def failure(panic: BaseException) -> ForeignFailure:
    """Return `panic` as a ForeignFailure, with its message in one line."""
    words = " ".join(str(panic).split())[:200] or type(panic).__name__
    return ForeignFailure(words)
