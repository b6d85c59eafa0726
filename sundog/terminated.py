"""SIGTERM where it ends a command as Ctrl-C does: from its first instant, before the rest is imported."""

import signal
from types import FrameType

CODE = 143
"""The exit code, as a shell reports a process that SIGTERM ended."""


class Terminated(KeyboardInterrupt):
    """Raised in a command when SIGTERM has come."""


def like_ctrl_c() -> None:
    """Let SIGTERM raise Terminated from now on, unless this process was begun with it ignored."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end)


def no_more() -> None:
    """All is done and shown: let SIGTERM not take from the end what it says."""
    if signal.getsignal(signal.SIGTERM) is _end:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _end(_number: int, _frame: FrameType | None) -> None:
    raise Terminated
