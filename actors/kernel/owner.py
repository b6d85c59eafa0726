"""The parties that a mailbox knows: its owner, and watchers that pass on what becomes of it."""

from typing import Generic, TypeVar, cast

from mypy_extensions import mypyc_attr

from sundog.actors.kernel.clock import RunClock, Timer
from sundog.actors.kernel.reply import Reader, Reply

M_contra = TypeVar("M_contra", contravariant=True)


@mypyc_attr(allow_interpreted_subclasses=True)
class Owner(Reader, Generic[M_contra]):
    """The actor that reads a mailbox, as the mailbox knows it."""

    _clock: RunClock | None = None

    @property
    def clock(self) -> RunClock:
        """The run's clock, once the run has begun."""
        if self._clock is None:
            self._clock = RunClock()
        return self._clock

    def receive(self, message: M_contra, reply: Reply[object] | None) -> None:
        """Handle a message now; only a mailbox whose owner is free calls this. It never raises."""
        raise NotImplementedError

    def tell_self(self, message: M_contra) -> None:
        """Handle a message that the actor sends itself, unless it has ended meanwhile. It never raises."""
        raise NotImplementedError

    def wake(self) -> None:
        """No counted caller is left."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Watcher:
    """A listener, for senders elsewhere: called when a mailbox closes or loses a message to its owner."""

    def taken(self) -> None:
        """The oldest message of a bounded mailbox is about to be handled."""

    def closed(self) -> None:
        """The owner takes no message any more."""


AnyOwner = Owner[object]
"""The type of any owner, made once: plain Python makes a type that is named in a call at every call."""


class MessageTimer(Timer):
    """A message that an actor sends itself, due at an instant."""

    __slots__ = ("_message", "_owner")

    def __init__(self, owner: Owner[M_contra], message: M_contra) -> None:
        super().__init__()
        self._owner = cast(AnyOwner, owner)
        self._message: object = message

    def call(self) -> None:
        self._owner.tell_self(self._message)

    def __repr__(self) -> str:
        return f"the message {self._message!r} that an actor sends itself"
