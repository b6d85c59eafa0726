"""Progress of slow startup work, as log lines.

A line is printed only for work that has lasted a moment; quick loads print nothing.
"""

import logging
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

LOOK_S = 1.0
TENTHS = 10
_LOG = logging.getLogger("sundog.loading")
T = TypeVar("T")


def show_progress() -> None:
    """Show the progress lines in this process, which otherwise shows only warnings."""
    _LOG.setLevel(logging.INFO)


class LoadProgress:
    """Progress of loading `name`, logged as it changes."""

    def __init__(self, name: str, doing: str = "") -> None:
        self._name = name
        self._doing = doing
        self._said = ""

    def stage(self, doing: str) -> None:
        """Set the current stage."""
        self._doing = doing

    def each(self, doing: str, sized: Iterable[tuple[T, int]]) -> Iterator[T]:
        """Iterate over items with sizes in bytes, and record what share of the bytes is done."""
        left = deque(sized)
        all_bytes, done_bytes = max(1, sum(size for _, size in left)), 0
        while left:  # which lets go of each item
            item, size = left.popleft()
            tenths = TENTHS * done_bytes // all_bytes
            self._doing = f"{doing}, {100 // TENTHS * tenths} % of {all_bytes / 1e9:.2f} GB"
            yield item
            done_bytes += size

    def say(self) -> None:
        """Log a line if the progress changed since the last one."""
        if self._doing and self._doing != self._said:
            self._said = self._doing
            _LOG.info("loading %s: %s", self._name, self._doing)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Log progress once a second inside; its thread ends on exit."""
        is_over = threading.Event()

        def look() -> None:
            while not is_over.wait(LOOK_S):
                self.say()

        thread = threading.Thread(target=look, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
