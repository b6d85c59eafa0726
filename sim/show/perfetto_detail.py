"""How much of a recorded run a trace for a viewer holds, so that the viewer opens it.

Law: what is left out is said. A span of time or fewer requests show the rest in full.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from sim.explain.history import History
from sim.explain.spans import RequestHistory
from sim.record.journal_rows import Step

MOST_REQUESTS = 2_000
MOST_SLICES = 50_000
MOST_MESSAGES = 200_000


@dataclass(frozen=True, slots=True)
class Detail:
    """What is wanted: a span of the run's seconds, and at most so many requests."""

    from_s: float = 0.0
    to_s: float = math.inf
    num_requests: int = MOST_REQUESTS

    def holds(self, start_s: float, end_s: float) -> bool:
        """Whether any of this time is wanted."""
        return start_s <= self.to_s and end_s >= self.from_s


WHOLE = Detail()


class Slice(NamedTuple):
    """Steps of one replica that are drawn as one: they follow each other without a pause to be seen."""

    steps: tuple[Step, ...]

    @property
    def start_s(self) -> float:
        return self.steps[0].start_s

    @property
    def end_s(self) -> float:
        return max(step.ends_s[-1] for step in self.steps)

    @property
    def num_steps(self) -> int:
        return sum(len(step.ends_s) for step in self.steps)


@dataclass(slots=True)
class Drawn:
    """What of a run is drawn; `left_out` says what is not, in words."""

    detail: Detail
    requests: list[RequestHistory] = field(default_factory=list)
    steps_a_slice: int = 1
    pause_s: float = 0.0
    """A longer one ends a slice."""
    left_out: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, history: History, detail: Detail) -> "Drawn":
        """Requests: the slowest half of as many as are wanted, and of the others every so many."""
        drawn = cls(detail)
        there = [r for r in history.requests.values() if detail.holds(r.arrival.time_s, ended_s(r))]
        drawn.requests = chosen(there, detail.num_requests)
        if (num_missing := len(there) - len(drawn.requests)) > 0:
            which = "those drawn are the slowest, and some of all others"
            drawn.left_out.append(f"{num_missing:,} of {len(there):,} requests ({which})")
        if history.requests and not there:
            num_requests = len(history.requests)
            drawn.left_out.append(f"all {num_requests:,} requests (none is under way in these seconds)")
        starts_s = [s for queue in history.queues.values() for s in queue.starts_s if detail.holds(s, s)]
        if len(starts_s) > MOST_SLICES:
            drawn.steps_a_slice = math.ceil(len(starts_s) / MOST_SLICES)
            drawn.pause_s = (max(starts_s) - min(starts_s)) / MOST_SLICES
            drawn.left_out.append(f"single steps (up to {drawn.steps_a_slice} batches are one slice)")
        return drawn

    def slices(self, steps: Iterable[Step]) -> Iterator[Slice]:
        """The steps that are wanted, of any replica, as slices in order of their ends."""
        open_: dict[int, list[Step]] = {}
        for step in steps:
            if not step.ends_s or not self.detail.holds(step.start_s, step.ends_s[-1]):
                continue
            own = open_.setdefault(step.replica, [])
            if own and (len(own) == self.steps_a_slice or step.start_s > own[-1].ends_s[-1] + self.pause_s):
                yield Slice(tuple(own))
                own.clear()
            own.append(step)
        for own in open_.values():
            if own:
                yield Slice(tuple(own))


def ended_s(request: RequestHistory) -> float:
    """When it ended, or the record did."""
    if request.end_s is not None:
        return request.end_s
    last_s = request.spans[-1].end_s if len(request.spans) == len(request.waits) else request.waits[-1].end_s
    return request.arrival.time_s if last_s is None else last_s


def chosen(requests: list[RequestHistory], most: int) -> list[RequestHistory]:
    """At most this many, in their order: the slowest half, and the others evenly."""
    if len(requests) <= most:
        return requests
    by_time = sorted(
        range(len(requests)), key=lambda n: (requests[n].arrival.time_s - ended_s(requests[n]), n)
    )
    slowest, others = by_time[: most - most // 2], sorted(by_time[most - most // 2 :])
    evenly = [others[number * len(others) // (most // 2)] for number in range(most // 2)]
    return [requests[number] for number in sorted({*slowest, *evenly})]
