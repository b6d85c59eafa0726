"""Ctrl-C in a replay: it ends between two messages, so that what it recorded is whole until then."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from sundog.sim.record.recorder import Recorder


class ReplayStopping(Exception):
    """The client of a replay gives up, because Ctrl-C was pressed."""


class Interrupted(KeyboardInterrupt):
    """A replay was ended by Ctrl-C; `recorder` holds what came of it until `until_s`."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.until_s = max(steps.last_end_s for steps in recorder.steps)
        super().__init__(f"interrupted at {self.until_s:,.3f} s of the replay")


@contextmanager
def ctrl_c() -> Iterator[Callable[[], bool]]:
    """A function that says whether Ctrl-C was pressed; pressed again, it acts at once.

    Where other code handles Ctrl-C, or outside the main thread, the function is never true.
    """
    usual, pressed = signal.getsignal(signal.SIGINT), False
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or usual is not signal.default_int_handler:
        yield lambda: False
        return

    def press(_number: int, _frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, usual)

    signal.signal(signal.SIGINT, press)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, usual)


def is_stopping(error: BaseException) -> bool:
    """Return True if all that went wrong is that the client gave up."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_stopping, error.exceptions))
    return isinstance(error, ReplayStopping)
