"""What must happen when a request ends, on whatever way it does."""

from collections.abc import Callable
from types import TracebackType


class AtEnd:
    """Calls that are made at the end of a block, the last first, each even if another raises.

    The standard library's stack does the same, and takes three kilobytes more of each open stream.
    """

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: list[tuple[Callable[..., object], tuple[object, ...]]] = []

    def callback(self, call: Callable[..., object], *arguments: object) -> None:
        """Have it called; synchronous, for it may run inside a cancellation."""
        self._calls.append((call, arguments))

    def __enter__(self) -> "AtEnd":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        try:
            while self._calls:
                call, arguments = self._calls.pop()
                call(*arguments)
        finally:
            if self._calls:
                self._close()
