"""Where an engine process begins: here by the fork server, or elsewhere. What watches it is the same."""

import socket
from typing import Protocol


class Begun(Protocol):
    """An engine process that has begun. Hands are shaken with it, and its clock is the server's."""

    @property
    def name(self) -> str:
        """What people call it: `the engine process 4711`."""
        ...

    @property
    def connected(self) -> socket.socket:
        """This end of the link to it; whoever is given the process closes it."""
        ...

    def kill(self) -> None:
        """End it at once, unless it has ended."""
        ...

    async def ended(self) -> str:
        """Wait until it has ended, and say how, in words. It is killed if it takes long."""
        ...


class Place(Protocol):
    """Where the engine processes of a server begin."""

    async def begin(self, replica: int) -> Begun:
        """A new engine process.

        Raises ConfigError if there can be none, and WireError if what has begun is none of ours; nothing is
        left of it then.
        """
        ...

    def tend(self) -> None:
        """Begin again what processes are forked from, if it has ended."""
        ...
