"""Reports of what actors are doing, to diagnose a stalled engine, and for the live page."""

from collections.abc import Callable, Sequence
from typing import Never

from sundog.actors.core.records import dataclass
from sundog.actors.kernel.actor import Actor
from sundog.actors.kernel.clock import now_s


@dataclass(frozen=True, slots=True)
class ActorReport:
    """State of an actor at one moment: `doing` is the message it handles, None between messages.

    That state has lasted `for_s`. Up to `at_s`, on the clock of its process, it has handled `num_handled`
    messages, with at most `most_waiting` unread at a time.
    """

    actor: str
    doing: str | None
    for_s: float
    num_waiting: int
    num_handled: int = 0
    most_waiting: int = 0
    at_s: float = 0.0

    def __str__(self) -> str:
        what = "between messages" if self.doing is None else f"handling {self.doing}"
        waiting = f", {self.num_waiting} waiting" if self.num_waiting else ""
        return f"{self.actor}: {what} for {self.for_s:.1f} s{waiting}"


def report(actors: Sequence[Actor[Never]], at_s: float | None = None) -> tuple[ActorReport, ...]:
    """Return a report of each actor now; a thread without the run's clock passes `at_s`."""
    at_s = now_s() if at_s is None else at_s
    return tuple(_report(actor, at_s) for actor in actors)


class Roster:
    """Report functions of all actors: those of a graph's front, and of each running core."""

    def __init__(self) -> None:
        self._asked: dict[str, Callable[[], Sequence[ActorReport]]] = {}

    def enter(self, place: str, asked: Callable[[], Sequence[ActorReport]]) -> None:
        """Register the report function of a place's actors."""
        self._asked[place] = asked

    def leave(self, place: str) -> None:
        """Remove a place whose actors have ended; idempotent."""
        self._asked.pop(place, None)

    def reports(self) -> list[tuple[str, ActorReport]]:
        """Return the reports of all actors, each with its place."""
        return [(place, each) for place, asked in self._asked.items() for each in asked()]


def _report(actor: Actor[Never], at_s: float) -> ActorReport:
    seen = actor.statistics()
    doing = None if actor.mailbox.is_free else _named(actor.message)
    for_s = at_s - (seen.last_s or at_s)
    return ActorReport(
        actor.name,
        doing,
        for_s=for_s,
        num_waiting=seen.num_waiting,
        num_handled=seen.num_handled,
        most_waiting=seen.most_waiting,
        at_s=at_s,
    )


def _named(message: object) -> str:
    for name in ("step", "request_id"):
        if (value := getattr(message, name, None)) is not None:
            return f"{type(message).__name__} of {name.replace('_id', '')} {value}"
    return type(message).__name__
