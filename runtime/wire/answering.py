"""A process that is one actor for the process at the other end of its connection."""

import socket
from collections.abc import Sequence
from typing import Any

import trio

from actors.kernel.actor import Actor
from runtime.wire.handshake import shake_hands
from runtime.wire.link import Link


async def live_for(connected: socket.socket, messages: Sequence[type], actor: Actor[Any], peer: str) -> None:
    """Be called, and be this actor until the connection ends; WireError if the caller is not ours."""
    await shake_hands(connected, messages, b"", called=True)
    link = Link(connected, messages, peer)
    async with trio.open_nursery() as nursery:
        hold = actor.ref("process")
        await nursery.start(actor.live)
        link.export(actor)
        await link.run()
        hold.close()
