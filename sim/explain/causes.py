"""Seconds of waiting by cause, for every wait of a run, without walking through each.

A queue's segments give, per reason, the seconds up to any moment; a wait is the difference of two
of those. Cost is O(segments + waits), where walking through each would be O(segments × waits).
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from sim.explain.history import History
from sim.explain.phases import UNDER_WAY, UNKNOWN
from sim.explain.spans import Queue, RequestHistory, Wait


@dataclass(slots=True)
class CauseClock:
    """Seconds per reason that a queue has seen, at any output."""

    queue: Queue
    seconds: dict[str, list[float]] = field(init=False)
    """Per reason: seconds before each segment."""
    turns: dict[str, list[int]] = field(init=False)
    """Per request: the segments in which it was next and lacked something."""

    def __post_init__(self) -> None:
        queue = self.queue
        reasons = {segment.reason or UNDER_WAY for segment in queue.segments}
        self.seconds = {reason: [0.0] for reason in sorted(reasons)}
        self.turns = defaultdict(list)
        for number, segment in enumerate(queue.segments):
            for reason, sums in self.seconds.items():
                holds = reason == (segment.reason or UNDER_WAY)
                length_s = queue.segment_end_s(number) - segment.start_s if holds else 0.0
                sums.append(sums[-1] + length_s)
            if segment.head is not None:
                self.turns[segment.head].append(number)

    def between(self, wait: Wait) -> dict[str, float]:
        """The wait's seconds by reason, while steps refused it; the rest passed in a step under way."""
        if wait.first >= wait.stop:
            return {}
        assert wait.end_s is not None
        start_s = self.queue.starts_s[wait.first]
        first, last = self.queue.segment_at(wait.first), self.queue.segment_at(wait.stop - 1)
        return {
            reason: seconds
            for reason in self.seconds
            if (seconds := self._at(reason, last, wait.end_s) - self._at(reason, first, start_s)) > 0
        }

    def own_turn_s(self, name: str, wait: Wait) -> float:
        """Seconds of the wait in which the request itself was next."""
        if wait.first >= wait.stop:
            return 0.0
        assert wait.end_s is not None
        start_s, total_s = self.queue.starts_s[wait.first], 0.0
        for number in self.turns.get(name, ()):
            begin_s = max(self.queue.segments[number].start_s, start_s)
            total_s += max(min(self.queue.segment_end_s(number), wait.end_s) - begin_s, 0.0)
        return total_s

    def _at(self, reason: str, number: int, time_s: float) -> float:
        segment = self.queue.segments[number]
        inside_s = time_s - segment.start_s if (segment.reason or UNDER_WAY) == reason else 0.0
        return self.seconds[reason][number] + inside_s


@dataclass(slots=True)
class Causes:
    """Waiting of a whole run: seconds by cause, of the requests first in their queue."""

    seconds: dict[str, float] = field(default_factory=dict)
    num_requests: Counter[str] = field(default_factory=Counter)
    own_turn_s: float = 0.0

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def ordered(self) -> list[tuple[str, float]]:
        """The causes with their seconds, the greatest first."""
        return sorted(self.seconds.items(), key=lambda item: (-item[1], item[0]))


def causes(history: History) -> Causes:
    """All waits of all requests, by cause."""
    clocks = {replica: CauseClock(queue) for replica, queue in history.queues.items()}
    found = Causes()
    for request in history.requests.values():
        touched = set[str]()
        for wait in request.waits:
            by_reason = _wait(clocks, request, wait)
            touched |= by_reason.keys()
            for reason, seconds in by_reason.items():
                found.seconds[reason] = found.seconds.get(reason, 0.0) + seconds
            if request.replica is not None:
                found.own_turn_s += clocks[request.replica].own_turn_s(request.request_id, wait)
        found.num_requests.update(touched)
    return found


def _wait(clocks: dict[int, CauseClock], request: RequestHistory, wait: Wait) -> dict[str, float]:
    assert wait.end_s is not None
    length_s = wait.end_s - wait.start_s
    if length_s <= 0:
        return {}
    if request.replica is None:
        return {UNKNOWN: length_s}
    clock = clocks[request.replica]
    by_reason = clock.between(wait)
    considered_s = wait.end_s if not by_reason else clock.queue.starts_s[wait.first]
    before_s = considered_s - wait.start_s
    if before_s > 0:
        by_reason[UNDER_WAY] = by_reason.get(UNDER_WAY, 0.0) + before_s
    return by_reason
