"""SIGTERM handled like Ctrl-C: from the start of the process, before other imports."""

import signal
from types import FrameType

CODE = 143
"""Exit code of a process that SIGTERM ended, as shells report it."""


class Terminated(KeyboardInterrupt):
    """SIGTERM has ended a command."""


def like_ctrl_c() -> None:
    """Make SIGTERM raise Terminated from now on, unless this process was started with it ignored."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end)


def no_more() -> None:
    """Ignore SIGTERM from now on, because all results have been shown."""
    if signal.getsignal(signal.SIGTERM) is _end:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _end(_number: int, _frame: FrameType | None) -> None:
    raise Terminated
