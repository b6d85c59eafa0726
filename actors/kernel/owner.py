"""The owner of a mailbox, and watchers that pass on what happens to one."""

from typing import Generic, TypeVar, cast

from mypy_extensions import mypyc_attr

from sundog.actors.kernel.clock import RunClock, Timer, run_clock
from sundog.actors.kernel.reply import Reader, Reply

M_contra = TypeVar("M_contra", contravariant=True)


@mypyc_attr(allow_interpreted_subclasses=True)
class Owner(Reader, Generic[M_contra]):
    """The actor that reads a mailbox."""

    _clock: RunClock | None = None

    @property
    def clock(self) -> RunClock:
        """Clock of the run, available once the run has begun."""
        if self._clock is None:
            self._clock = run_clock()
        return self._clock

    def receive(self, message: M_contra, reply: Reply[object] | None) -> None:
        """Handle a message now; only a mailbox whose owner is free calls this. It never raises."""
        raise NotImplementedError

    def tell_self(self, message: M_contra) -> None:
        """Handle a message from the actor to itself, unless it has ended. It never raises."""
        raise NotImplementedError

    def wake(self) -> None:
        """Handle the loss of the last counted caller."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Watcher:
    """Callbacks for senders elsewhere: a mailbox was closed, or its owner took a message."""

    def taken(self) -> None:
        """Handle that the oldest message of a bounded mailbox is about to be processed."""

    def closed(self) -> None:
        """Handle that the owner has stopped taking messages."""


AnyOwner = Owner[object]
"""Type of any owner. It is made once: a type that is named in a call is made at every call in plain Python.
"""


class MessageTimer(Timer):
    """A message from an actor to itself at an instant."""

    __slots__ = ("_message", "_owner")

    def __init__(self, owner: Owner[M_contra], message: M_contra) -> None:
        super().__init__()
        self._owner = cast(AnyOwner, owner)
        self._message: object = message

    def call(self) -> None:
        self._owner.tell_self(self._message)

    def __repr__(self) -> str:
        return f"the message {self._message!r} that an actor sends itself"
