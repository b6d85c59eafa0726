"""Ctrl-C in a replay: it ends between two messages, so that its record is complete up to then."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from sundog.sim.record.recorder import Recorder


class ReplayStopping(Exception):
    """Raised in the client of a replay to stop it after Ctrl-C."""


class Interrupted(KeyboardInterrupt):
    """Raised after Ctrl-C ended a replay; `recorder` holds its results up to `until_s`."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.until_s = max(steps.last_end_s for steps in recorder.steps)
        super().__init__(f"interrupted at {self.until_s:,.3f} s of the replay")


@contextmanager
def ctrl_c() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed; a second press interrupts at once.

    If other code handles Ctrl-C, or outside the main thread, the function always returns False.
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
    """Return whether the error only means that the client stopped."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_stopping, error.exceptions))
    return isinstance(error, ReplayStopping)
