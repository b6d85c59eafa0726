"""What the actors of an engine core are doing, for whoever asks why it does not go on."""

from collections.abc import Sequence
from typing import Never

from actors.actor import Actor
from actors.clock import now_s
from actors.core.records import dataclass


@dataclass(frozen=True, slots=True)
class ActorReport:
    """An actor at one moment: `doing` is the message it handles, None between messages.

    It has handled it, or been without one, for `for_s`.
    """

    actor: str
    doing: str | None
    for_s: float
    num_waiting: int

    def __str__(self) -> str:
        what = "between messages" if self.doing is None else f"handling {self.doing}"
        waiting = f", {self.num_waiting} waiting" if self.num_waiting else ""
        return f"{self.actor}: {what} for {self.for_s:.1f} s{waiting}"


def report(actors: Sequence[Actor[Never]]) -> tuple[ActorReport, ...]:
    """What each of them is doing now."""
    return tuple(_report(actor) for actor in actors)


def _report(actor: Actor[Never]) -> ActorReport:
    seen = actor.statistics()
    doing = None if actor.mailbox.is_free else _named(actor.message)
    return ActorReport(actor.name, doing, now_s() - (seen.last_s or now_s()), seen.num_waiting)


def _named(message: object) -> str:
    """A message in a few words, whatever it holds."""
    for name in ("step", "request_id"):
        if (value := getattr(message, name, None)) is not None:
            return f"{type(message).__name__} of {name.replace('_id', '')} {value}"
    return type(message).__name__
