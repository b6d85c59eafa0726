"""The seam through which a client's data passes into foreign code: tokenizers, templates, grammars, parsers.

Law: whatever foreign code raises there is the error of that one request. Libraries in Rust raise
PanicException, which is no Exception: `except Exception` lets it through, and one prompt ends the server.
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
    """A library failed at a client's data in a way that is no Exception, such as a panic in Rust."""


def contained(work: Callable[[], T]) -> T:
    """Return the result of `work`; raise ForeignFailure for what is neither an Exception nor an exit.

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
    """Return the ForeignFailure that stands for `panic`, with the panic's words in one line."""
    words = " ".join(str(panic).split())[:200] or type(panic).__name__
    return ForeignFailure(words)
