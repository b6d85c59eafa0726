"""The server's side of the fork server: it is started once, and asked for engine processes."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import trio

from actors.config import ConfigError
from runtime.wire.frames import WireError
from runtime.wire.handshake import shake_hands
from runtime.worker.clock import set_clock
from runtime.worker.fork_server import ANSWER, FORK, READY, REAP, REFUSED, REQUEST
from runtime.worker.life import ended_or_killed, how_it_ended
from runtime.worker.messages import WORKER_MESSAGES

READY_S = 600.0
"""How long the fork server may take to import everything, from a slow disk."""
FORK_S = 10.0
LEAVE_S = 2.0
"""How long an engine process may take to end."""


class ForkServerDied(Exception):
    """The fork server ended; the next fork starts another."""


class Forks:
    """The place of engine processes on this machine (`Place`).

    `command` starts the fork server, and reads `orders` from its stdin. It gets two further arguments:
    the descriptor of its socket and this process's id. `messages` are what its processes exchange, `kind`
    is what people call one.
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
        self._children: set[int] = set()
        """Of this fork server: those of one before it nobody can wait for."""
        self._one_at_a_time: trio.Lock | None = None

    def start(self) -> None:
        """Start the fork server, which then imports what engines need. Call it in the main thread.

        A process is bound to the thread that starts it (PR_SET_PDEATHSIG).
        """
        self.close()
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
        self._children = set()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(self._orders)

    async def begin(self, replica: int) -> "Forked":
        """A new engine process. Raises ConfigError if the fork server says that there can be none."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                forked = Forked(self, await self.fork(replica, theirs), ours)
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
        return forked

    async def fork(self, replica: int, connected: socket.socket) -> int:
        """The id of a new process, which has this end of a link; ConfigError and ForkServerDied."""
        async with self._alone():
            await self._until_ready()
            try:
                with trio.fail_after(FORK_S, shield=True):
                    self._ask(FORK, replica, connected)
                    process = await self._answer(FORK)
            except trio.TooSlowError:
                raise self._unanswered() from None
            self._children.add(process)
            return process

    async def ready(self) -> None:
        """Wait until the fork server, begun again if it has ended, has imported what engines need.

        Raises ConfigError if it says that there can be no engines, and ForkServerDied.
        """
        async with self._alone():
            await self._until_ready()

    async def _until_ready(self) -> None:
        if self._process is None or self._process.poll() is not None:
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

    async def reap(self, process: int) -> int | None:
        """How an engine process ended, as `waitpid` says; None if nobody knows. It is killed if need be."""
        with suppress(ForkServerDied):
            async with self._alone():
                if process not in self._children:
                    return None
                self._children.remove(process)
                self._ask(REAP, process)
                reaped, killed = partial(self._answer, REAP), partial(_kill, process)
                if (status := await ended_or_killed(reaped, killed, LEAVE_S, LEAVE_S)) is not None:
                    return status
                self.close()
        return None

    def close(self) -> None:
        """End the fork server, and with it all engine processes that are left."""
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
    """An engine process of this machine (`Begun`)."""

    forks: Forks
    process: int
    connected: socket.socket

    @property
    def name(self) -> str:
        return f"the {self.forks.kind} {self.process}"

    def kill(self) -> None:
        _kill(self.process)

    async def ended(self) -> str:
        status = await self.forks.reap(self.process)
        return "ended" if status is None else how_it_ended(status)


def _kill(process: int) -> None:
    """End a process that is ours at once, unless it has ended."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def module_command(module: str) -> list[str]:
    """The command that runs a module in a Python like this one."""
    return [sys.executable, "-m", module]
