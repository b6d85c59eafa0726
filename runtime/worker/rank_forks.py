"""Ranks that are forked from the process of rank 0, before it runs an event loop or computes anything."""

import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import trio

from actors.config import EngineConfig
from actors.engine.backend import Backend
from runtime.ranks.rank import Rank, first_of
from runtime.wire.handshake import shake_hands
from runtime.worker.clock import set_clock
from runtime.worker.life import forked, how_it_ended
from runtime.worker.messages import WORKER_MESSAGES
from runtime.worker.rank_process import run_rank
from runtime.worker.ranks import Ranks

LEAVE_S = 2.0

NewBackend = Callable[[Rank], Callable[[int], Backend]]
"""What makes the backend of a rank of a replica."""
RunHost = Callable[[EngineConfig, Callable[[int], Backend], int, socket.socket, Ranks], None]
"""The life of an engine process (`runtime/worker/host.py`)."""


@dataclass(slots=True)
class ForkedRank:
    """A rank's process on this machine (`Begun`); the kernel kills it when that of rank 0 dies."""

    number: int
    process: int
    connected: socket.socket
    how: str | None = None
    """How it ended, once that is known."""

    @property
    def name(self) -> str:
        return f"rank {self.number} (process {self.process})"

    def kill(self) -> None:
        if self.how is None:
            with suppress(ProcessLookupError):
                os.kill(self.process, signal.SIGKILL)

    async def ended(self) -> str:
        with trio.move_on_after(LEAVE_S):
            while not self._has_ended():  # noqa: ASYNC110  # once in the life of a process
                await trio.sleep(0.005)
        if self.how is None:
            self.kill()
            self.how = how_it_ended(os.waitpid(self.process, 0)[1])  # noqa: ASYNC222  # it is dead
        return self.how

    def _has_ended(self) -> bool:
        if self.how is None:
            process, status = os.waitpid(self.process, os.WNOHANG)
            if process:
                self.how = how_it_ended(status)
        return self.how is not None


class RankForks:
    """Where a replica's ranks begin (`Place`): they were forked when this was made."""

    def __init__(self, new_backend: NewBackend, replica: int, first: Rank, not_theirs: socket.socket) -> None:
        self._ranks: list[ForkedRank] = []
        for number in range(1, first.count):
            ours, theirs = socket.socketpair()
            closed = [not_theirs, ours, *(each.connected for each in self._ranks)]
            process = _fork(new_backend(first.other(number)), replica, first, number, theirs, closed)
            theirs.close()
            self._ranks.append(ForkedRank(number, process, ours))

    async def begin(self, number: int) -> ForkedRank:
        """The rank of this number, with hands shaken and its clock set."""
        rank = self._ranks[number - 1]
        await shake_hands(rank.connected, WORKER_MESSAGES, b"", called=False)
        await set_clock(rank.connected, is_here=True)
        return rank

    def tend(self) -> None:
        """All ranks have been forked: nothing is begun again."""


def run_shared(
    run: RunHost,
    config: EngineConfig,
    new_backend: NewBackend,
    count: int,
    stall_s: float,
    replica: int,
    connected: socket.socket,
) -> None:
    """The life of an engine process whose model `count` ranks share: it is rank 0, and forks the others.

    `run` is the rest of it: that of a process that was just forked here, or elsewhere.
    """
    first = first_of(count)
    place = RankForks(new_backend, replica, first, connected)
    run(config, new_backend(first), replica, connected, Ranks(replica, count, place, stall_s))


def _fork(
    new_backend: Callable[[int], Backend],
    replica: int,
    first: Rank,
    number: int,
    connected: socket.socket,
    closed: list[socket.socket],
) -> int:
    """The process id of a rank, which has no business with the sockets `closed`."""

    def live() -> None:
        for each in closed:
            each.close()
        assert first.listening is not None
        os.close(first.listening)
        run_rank(new_backend, replica, number, connected)

    return forked(f"sundog rank {replica}.{number}", live)
