"""How a process of ours lives: no longer than its parent, and deaf to what is meant for the server."""

import ctypes
import os
import signal
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from runtime.wire.link import Link

T = TypeVar("T")
PULSE_S = 0.5
"""How often a process says what its actors do."""
LEAVE_S = 5.0
"""How long a step may go on when nobody is there whom it is for; then the process ends by force."""

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
ORPHANED = 3
"""The exit code of a process whose parent was gone before it could be bound to it."""


def begin_life(name: str, parent: int) -> None:
    """Be called `name` (15 characters show), and be killed when the process `parent` dies, however it dies.

    Signals to stop are for the server, which says by the link when its engines are to end.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode()[:15], 0, 0, 0)
    bind_to(parent, signal.SIGKILL)


def bind_to(parent: int, last: signal.Signals) -> None:
    """Be sent this signal when the process `parent` dies, however it dies (Linux); end if it has died."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, last, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(ORPHANED)


def forked(name: str, live: Callable[[], None]) -> int:
    """The process id of a fork of this process, called `name`, that lives once and ends with this one."""
    parent = os.getpid()
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        begin_life(name, parent)
        live()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def how_it_ended(status: int) -> str:
    """What `waitpid` says, in words."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exited with code {code}"
    return f"was killed by {signal.Signals(-code).name} (signal {-code})"


async def ended_or_killed(
    end: Callable[[], Awaitable[T]], kill: Callable[[], None], leave_s: float, kill_s: float
) -> T | None:
    """How a process ended: by itself within `leave_s`, or killed within `kill_s`; None if it does not end."""
    with trio.move_on_after(leave_s):
        return await end()
    kill()
    with trio.move_on_after(kill_s):
        return await end()
    return None


async def until_gone(link: Link, scope: trio.CancelScope) -> None:
    """Carry frames; when the other end is gone, end what goes on here."""
    await link.run()
    end_by_force()
    scope.cancel()


def end_by_force() -> None:
    """End this process in a while, should it not have ended by then: a step cannot be cut short."""
    timer = threading.Timer(LEAVE_S, os._exit, (1,))
    timer.daemon = True
    timer.start()
