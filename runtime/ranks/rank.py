"""Number of a process among a replica's ranks, and their meeting place. Nothing here imports torch."""

import socket
from dataclasses import dataclass, replace

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Rank `number` of `count`; rank 0 samples, and has the store in which the others find each other.

    The store listens at `port` of this machine; at rank 0 that is the socket `listening`.
    """

    number: int
    count: int
    port: int
    listening: int | None = None

    @property
    def leads(self) -> bool:
        """Whether this rank samples."""
        return self.number == 0

    def other(self, number: int) -> "RankPlace":
        """Return another rank of the same replica."""
        return replace(self, number=number, listening=None)

    def __str__(self) -> str:
        return f"rank {self.number} of {self.count}"


def first_of(count: int) -> RankPlace:
    """Return rank 0 of `count`, with a socket that only this machine reaches, at a free port."""
    listening = socket.create_server((LOOPBACK, 0))
    port: int = listening.getsockname()[1]
    return RankPlace(0, count, port, listening.detach())
