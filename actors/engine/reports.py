"""Reports of what actors are doing: to find why an engine does not go on, and for the live page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Never

from sundog.actors.kernel.actor import Actor
from sundog.actors.kernel.clock import now_s


@dataclass(frozen=True, slots=True)
class ActorReport:
    """An actor at one moment: `doing` is the message it handles, None between messages.

    It has handled it, or been without one, for `for_s`. Up to `at_s`, on the clock of its process, it has
    handled `num_handled` messages, and had `most_waiting` unread at the most.
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
    """Return a report of each actor as of now; a thread that has no clock of the run gives `at_s`."""
    at_s = now_s() if at_s is None else at_s
    return tuple(_report(actor, at_s) for actor in actors)


class Roster:
    """The functions that report what actors do: those of a graph's front, and of each core that runs."""

    def __init__(self) -> None:
        self._asked: dict[str, Callable[[], Sequence[ActorReport]]] = {}

    def enter(self, place: str, asked: Callable[[], Sequence[ActorReport]]) -> None:
        """Ask `asked` from now on for reports of the actors of this place."""
        self._asked[place] = asked

    def leave(self, place: str) -> None:
        """Forget a place, whose actors have ended; harmless when repeated."""
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
