"""Where an actor may run, for the laws of the kernel: a test that takes `place` is run in each.

A place has a clock and a way to reach an actor. One that reaches it by a socket or on another machine
is one more class with the same `start`, and one more parameter of the fixture.
"""

from dataclasses import dataclass
from typing import Any

import trio

from actors.actor import Actor, Ref


@dataclass(frozen=True)
class InProcess:
    """The actor is a task of the run that sends to it."""

    tick_s: float
    """A time that is long for this clock's actors, and short for whoever waits for the tests."""

    async def start(
        self, nursery: trio.Nursery, actor: Actor[Any], sender: str = "test", *, counted: bool = True
    ) -> Ref[Any]:
        """Start an actor; its address for `sender`."""
        ref = actor.ref(sender, counted=counted)
        await nursery.start(actor.live, name=actor.name)
        return ref


PLACES = {"virtual": InProcess(tick_s=1.0), "wall": InProcess(tick_s=0.02)}
