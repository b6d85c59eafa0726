"""Server's side of the fork server, which starts once and forks engine processes on request."""

import os
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import trio

from sundog.actors.config import ConfigError
from sundog.runtime.wire.frames import WireError
from sundog.runtime.wire.handshake import shake_hands
from sundog.runtime.worker.clock import set_clock
from sundog.runtime.worker.fork_server import ANSWER, FORK, READY, REFUSED, REQUEST
from sundog.runtime.worker.life import ChildProcess, adopt_orphans
from sundog.runtime.worker.messages import WORKER_MESSAGES

READY_S = 600.0
"""Seconds for the fork server to import everything, from a slow disk."""
FORK_S = 10.0
AGAIN_S = 5.0
"""Seconds after its start within which a fork server that ends is not restarted until it is needed."""


class ForkServerDied(Exception):
    """Raised if the fork server ended; the next fork starts another."""


class Forks:
    """Launcher of engine processes on this machine (`Launcher`).

    `command` starts the fork server, and reads `orders` from its stdin. It gets two further arguments: the
    descriptor of its socket and this process's id. `messages` are the types that its processes exchange,
    `kind` is their name for people.
    """

    def __init__(
        self,
        command: Sequence[str],
        orders: bytes,
        messages: Sequence[type] = WORKER_MESSAGES,
        kind: str = "engine process",
    ) -> None:
        self._command = command
        self._messages = messages
        self.kind = kind
        self._orders = orders
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._is_ready = False
        self.running: dict[int, Forked] = {}
        """Last process of each replica."""
        self._begin_s = 0.0
        """Time at which the fork server was started, in seconds."""
        self._one_at_a_time: trio.Lock | None = None

    def start(self) -> None:
        """Start the fork server, which then imports what engines need. Call it in the main thread.

        A process is bound to the thread that starts it (PR_SET_PDEATHSIG).
        """
        self.close()
        adopt_orphans()
        control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [*self._command, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C is for the server
            )
        control.setblocking(False)
        self._control, self._is_ready = control, False
        self._begin_s = time.monotonic()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(self._orders)

    async def begin(self, replica: int) -> "Forked":
        """Start an engine process. Raises ConfigError if the fork server refuses."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                forked = Forked(self.kind, await self.fork(replica, theirs), ours)
        except BaseException:
            ours.close()
            raise
        try:
            await shake_hands(forked.connected, self._messages, b"", called=False)
            await set_clock(forked.connected, is_here=True)
        except BaseException as error:
            forked.connected.close()
            forked.kill()
            with trio.CancelScope(shield=True):
                how = await forked.ended()
            if isinstance(error, WireError):
                raise WireError(f"{forked.name} {how}; {error}") from error
            raise
        self.running[replica] = forked
        return forked

    def tend(self) -> None:
        """Start another fork server if this one has ended or was stopped; forked processes go on.

        So the next process is also forked in milliseconds. Call it now and then, in the main thread.
        """
        is_due = time.monotonic() - self._begin_s > AGAIN_S
        if is_due and not self._alone().locked() and not self._is_running():
            self.start()

    def _is_running(self) -> bool:
        flags = os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        with suppress(ChildProcessError):
            return self._process is not None and os.waitid(os.P_PID, self._process.pid, flags) is None
        return False

    async def fork(self, replica: int, connected: socket.socket) -> ChildProcess:
        """Fork a process with this end of a link; raises ConfigError and ForkServerDied."""
        async with self._alone():
            await self._until_ready()
            try:
                with trio.fail_after(FORK_S, shield=True):
                    self._ask(FORK, replica, connected)
                    process = await self._answer(FORK)
            except trio.TooSlowError:
                raise self._unanswered() from None
            return ChildProcess(process)

    async def ready(self) -> None:
        """Wait until the fork server, restarted if it has ended, has imported what engines need.

        Raises ConfigError if it refuses, and ForkServerDied.
        """
        async with self._alone():
            await self._until_ready()

    async def _until_ready(self) -> None:
        if not self._is_running():
            self.start()
        if not self._is_ready:
            try:
                with trio.fail_after(READY_S):
                    await self._answer(READY)
            except trio.TooSlowError:
                raise self._unanswered() from None
            self._is_ready = True

    def _unanswered(self) -> ForkServerDied:
        self.close()
        return ForkServerDied("the process that starts engines does not answer")

    def close(self) -> None:
        """End the fork server. Forked processes go on, and end with this process."""
        if self._control is not None:
            self._control.close()
        process, self._process, self._control = self._process, None, None
        if process is not None:
            process.kill()
            process.wait()

    def _alone(self) -> trio.Lock:
        if self._one_at_a_time is None:
            self._one_at_a_time = trio.Lock()
        return self._one_at_a_time

    def _ask(self, command: bytes, number: int, passed: socket.socket | None = None) -> None:
        if self._control is None:
            raise ForkServerDied("it was closed")
        try:
            socket.send_fds(
                self._control, [REQUEST.pack(command, number)], [] if passed is None else [passed.fileno()]
            )
        except OSError as error:
            raise ForkServerDied(f"it cannot be asked: {error}") from error

    async def _answer(self, expected: bytes) -> int:
        kind, number = ANSWER.unpack(await self._receive(ANSWER.size))
        if kind == REFUSED:
            raise ConfigError((await self._receive(number)).decode())
        assert kind == expected, f"the fork server answers {kind!r}"
        return int(number)

    async def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            if self._control is None:
                raise ForkServerDied("it was closed")
            await trio.lowlevel.wait_readable(self._control)
            try:
                more = self._control.recv(size - len(data))
            except BlockingIOError:
                continue
            except OSError as error:
                raise ForkServerDied(str(error)) from error
            if not more:
                code = "" if self._process is None else f" with code {self._process.wait()}"
                raise ForkServerDied(f"the process that starts engines ended{code}")
            data += more
        return data


@dataclass(frozen=True, slots=True)
class Forked:
    """Engine process of this machine (`RunningProcess`)."""

    kind: str
    child: ChildProcess
    connected: socket.socket

    @property
    def name(self) -> str:
        return f"the {self.kind} {self.child.process}"

    def kill(self) -> None:
        self.child.kill()

    async def ended(self) -> str:
        return await self.child.ended()
