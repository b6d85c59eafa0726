"""Lifetime of a process: it ends with its parent, and ignores signals meant for the server."""

import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn, TypeVar

import trio

from sundog.actors.config import ConfigError
from sundog.runtime.wire.link import Link

T = TypeVar("T")
PULSE_S = 0.5
"""Seconds between reports of a process's actors."""
LEAVE_S = 5.0
"""Seconds that a step may continue after the server is gone; then the process is killed."""

PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36
END_S = 2.0
"""Seconds for a child to end by itself, and again after it is killed."""
POLL_S = 0.005
ORPHANED = 3
"""Exit code of a process whose parent was gone before it could be bound to it."""


def begin_life(name: str, parent: int) -> None:
    """Set the name of this process, of which 15 characters are shown, and be killed if the process `parent`
    dies.

    Stop signals are for the server, which ends its engines over the link.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode()[:15], 0, 0, 0)
    bind_to(parent, signal.SIGKILL)


def bind_to(parent: int, last: signal.Signals) -> None:
    """Let the kernel send this process the signal `last` when the process `parent` dies (Linux); exit if it
    is already dead.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, last, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(ORPHANED)


def forked(name: str, live: Callable[[], None]) -> int:
    """Fork a process called `name` that runs `live` and ends with this one; return its id."""
    parent = os.getpid()
    process = os.fork()
    if not process:
        _live_once(name, parent, live)
    return process


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def fork_for(adopter: int, name: str, live: Callable[[], None], tell: Callable[[int], None]) -> None:
    """Fork a process that becomes a child of the ancestor `adopter`, and outlives this one.

    An intermediate process forks it, passes its id to `tell` and ends, so that it becomes an orphan. It leads
    a process group, which its own children join.
    """
    between = os.fork()
    if between:
        if os.waitpid(between, 0)[1]:
            raise OSError("no process can be forked")
        return
    code = 1
    try:
        own = os.getpid()
        process = os.fork()
        if not process:
            while os.getppid() == own:
                time.sleep(0.0002)
            _live_once(name, adopter if sys.platform == "linux" else os.getppid(), live)
        os.setpgid(process, process)
        tell(process)
        code = 0
    finally:
        os._exit(code)


def _live_once(name: str, parent: int, live: Callable[[], None]) -> NoReturn:
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


def killed_loading(name: str, how: str) -> ConfigError | None:
    """Return the error for a process that was killed while loading, as happens when memory runs out."""
    if "SIGKILL" not in how:
        return None
    return ConfigError(f"{name} {how} while the model was loaded: out of memory?")


def how_it_ended(status: int) -> str:
    """Return the status of `waitpid` in words."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exited with code {code}"
    return f"was killed by {signal.Signals(-code).name} (signal {-code})"


@dataclass(slots=True)
class ChildProcess:
    """Adopted process that leads a process group (`fork_for`)."""

    process: int
    how: str | None = None
    """How the process ended, in words; None if unknown."""

    def kill(self) -> None:
        """Kill the process and its children at once, unless it has ended."""
        self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """Send the process and its children a signal, unless it has ended."""
        if self.how is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process, number)

    async def ended(self) -> str:
        """Wait until the process has ended, and return how, in words. It is killed if that takes long."""
        if self.how is None:
            self.how = await ended_or_killed(self._reaped, self.kill, END_S, END_S) or "does not end"
            with trio.move_on_after(END_S):
                await self._children_reaped()
        return self.how

    async def _reaped(self) -> str:
        while True:
            try:
                process, status = os.waitpid(self.process, os.WNOHANG)  # noqa: ASYNC222  # it does not wait
                if process:
                    return how_it_ended(status)
            except ChildProcessError:  # it is not adopted where orphans cannot be: only its end is seen
                try:
                    os.kill(self.process, 0)
                except ProcessLookupError:
                    return "ended"
            await trio.sleep(POLL_S)

    async def _children_reaped(self) -> None:
        with suppress(ChildProcessError, ProcessLookupError):
            while True:
                if not os.waitpid(-self.process, os.WNOHANG)[0]:  # noqa: ASYNC222  # it does not wait
                    os.killpg(self.process, signal.SIGKILL)
                    await trio.sleep(POLL_S)


async def ended_or_killed(
    end: Callable[[], Awaitable[T]], kill: Callable[[], None], leave_s: float, kill_s: float
) -> T | None:
    """Wait for the end of a process, killing it after `leave_s`; return how it ended, or None after `kill_s`
    more.
    """
    with trio.move_on_after(leave_s):
        return await end()
    kill()
    with trio.move_on_after(kill_s):
        return await end()
    return None


async def until_gone(link: Link, scope: trio.CancelScope) -> None:
    """Carry frames; cancel `scope` when the other end is gone."""
    await link.run()
    end_by_force()
    scope.cancel()


def end_by_force() -> None:
    """End this process by force after a while, unless it has ended by then: a step in progress cannot be
    interrupted.
    """
    timer = threading.Timer(LEAVE_S, os._exit, (1,))
    timer.daemon = True
    timer.start()
