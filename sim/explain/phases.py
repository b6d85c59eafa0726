"""Phases of a request from arrival to end, without gap or overlap, each with its cause.

A wait is split where its cause changes: which request was next in the queue, and what it lacked. Every step
that begins without the request has such a cause; before the first, a step was in flight.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sundog.sim.explain.history import History, RecordedQueue, RequestHistory, RunningSpan, Wait
from sundog.sim.record.journal_rows import Rank

UNDER_WAY = "step under way"
"""Cause of a wait before any refusal: the engine is in the middle of a step."""
FRONT_END = "API process"
"""Cause of a wait before the engine: an API process works on other requests, then on this one."""
UNKNOWN: Final = "unknown"
KINDS = ("waiting", "prefill", "decode", "recompute", "stalled")


@dataclass(slots=True)
class RequestPhase:
    """Period of a request with one cause. A wait has a `reason`, and `own` is whether the request itself was
    next in the queue.

    `heads` are the requests that were next instead, with the seconds of each. `needed_blocks` is the largest
    need of the first of them, or of the request itself; `free_blocks` and `num_running` are as of the
    period's first step.
    """

    kind: str
    start_s: float
    end_s: float
    num_steps: int | None = None
    reason: str | None = None
    own: bool = False
    heads: dict[str, float] = field(default_factory=dict)
    needed_blocks: int | None = None
    free_blocks: int | None = None
    num_running: int | None = None

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


def phases(history: History, request: RequestHistory) -> list[RequestPhase]:
    """Return all phases of a request, in order."""
    found: list[RequestPhase] = []
    for number, wait in enumerate(request.waits):
        found += wait_phases(history, request, wait)
        if number < len(request.spans):
            found += running_phases(request.spans[number])
    return found


def totals(found: list[RequestPhase]) -> dict[str, float]:
    """Return seconds by kind; their sum is the time from arrival to end."""
    sums = dict.fromkeys(KINDS, 0.0)
    for phase in found:
        sums[phase.kind] += phase.seconds
    return sums


# --- waiting -------------------------------------------------------------------------------------


def wait_phases(history: History, request: RequestHistory, wait: Wait) -> list[RequestPhase]:
    """Split one wait where its cause changes."""
    assert wait.end_s is not None
    if request.replica is None:
        return _if_long([RequestPhase("waiting", wait.start_s, wait.end_s, reason=UNKNOWN)])
    queue = history.queues[request.replica]
    considered_s = queue.starts_s[wait.first] if wait.first < wait.stop else wait.end_s
    reached_s = wait.start_s if wait.reached_s is None else wait.reached_s
    found = [
        RequestPhase("waiting", wait.start_s, end_s=reached_s, num_steps=0, reason=FRONT_END),
        RequestPhase("waiting", reached_s, end_s=considered_s, num_steps=0, reason=UNDER_WAY),
    ]
    for phase, head in _refusals(queue, request, wait):
        last = found[-1]
        if (last.reason, last.own) == (phase.reason, phase.own):
            last.num_steps = (last.num_steps or 0) + (phase.num_steps or 0)
            last.end_s = phase.end_s
        else:
            if phase.reason == "KV blocks":
                phase.needed_blocks = needed_blocks(history, head, phase.start_s)
            found.append(phase)
            last = phase
        if head is not None and not phase.own:
            last.heads[head] = last.heads.get(head, 0.0) + phase.seconds
    return _if_long(found)


def _refusals(
    queue: RecordedQueue, request: RequestHistory, wait: Wait
) -> Iterator[tuple[RequestPhase, str | None]]:
    if wait.first >= wait.stop:
        return
    assert wait.end_s is not None
    for number in range(queue.segment_at(wait.first), queue.segment_at(wait.stop - 1) + 1):
        segment = queue.segments[number]
        is_last = number + 1 == len(queue.segments)
        first = max(segment.first, wait.first)
        stop = wait.stop if is_last else min(queue.segments[number + 1].first, wait.stop)
        start_s = queue.starts_s[first]
        end_s = wait.end_s if stop == wait.stop else queue.segment_end_s(number)
        num_steps = queue.steps_before(stop) - queue.steps_before(first)
        own = segment.head == request.request_id
        yield (
            RequestPhase(
                "waiting",
                start_s,
                end_s=end_s,
                num_steps=num_steps,
                reason=segment.reason or UNDER_WAY,
                own=own,
                free_blocks=segment.free_blocks,
                num_running=segment.num_running,
            ),
            segment.head,
        )


def needed_blocks(history: History, name: str | None, time_s: float) -> int | None:
    """Return the blocks that a request needed to be admitted at a time, without prefix hits."""
    request, size = history.requests.get(name or ""), history.header.block_size
    if request is None or size is None:
        return None
    waits = [wait for wait in request.waits if wait.start_s <= time_s] or request.waits[:1]
    return -(-waits[-1].num_tokens // size)


# --- running -------------------------------------------------------------------------------------


def running_phases(span: RunningSpan) -> list[RequestPhase]:
    """Split one span of running: catching up, then decoding, stalled where a step passed it over."""
    assert span.end_s is not None
    end_s = span.end_s
    caught_up_s = end_s if span.caught_up_s is None else min(span.caught_up_s, end_s)
    kind = "recompute" if span.admitted.resumed else "prefill"
    found = [RequestPhase(kind, span.start_s, caught_up_s, span.catch_up_steps)]
    cursor_s = caught_up_s
    for start_s, stop_s in span.stalls:
        start_s, stop_s = max(start_s, cursor_s), min(stop_s, end_s)
        if start_s < stop_s:
            found.append(RequestPhase("decode", cursor_s, start_s))
            found.append(RequestPhase("stalled", start_s, stop_s))
            cursor_s = stop_s
    found.append(RequestPhase("decode", cursor_s, end_s))
    return _if_long(found)


def _if_long(found: list[RequestPhase]) -> list[RequestPhase]:
    return [phase for phase in found if phase.end_s > phase.start_s]


class Passing(NamedTuple):
    """Admission of another request, with its rank and that of the waiting one, as last known."""

    request_id: str
    time_s: float
    rank: Rank
    own_rank: Rank


def passings(history: History, request: RequestHistory, wait: Wait) -> list[Passing]:
    """Return the later requests that the policy put first in this wait. O(admissions in it)."""
    if request.replica is None or not request.ranks:
        return []
    queue, found = history.queues[request.replica], list[Passing]()
    stop = len(queue.admissions) if wait.turn is None else wait.turn
    for turn in range(bisect_left(queue.admissions, wait.first), stop):
        output = queue.admissions[turn]
        if output >= wait.stop and wait.turn is None:
            break
        other = history.requests[queue.admitted[turn]]
        if other.arrival.time_s <= request.arrival.time_s:
            continue
        rank, own_rank = other.rank_at(output), request.rank_at(output)
        if rank is not None and own_rank is not None and _is_lower(rank, own_rank):
            found.append(Passing(other.request_id, queue.starts_s[output], rank, own_rank))
    return found


def _is_lower(rank: Rank, own_rank: Rank) -> bool:
    try:
        return bool(rank < own_rank)  # type: ignore[operator]  # of one policy, so of one kind
    except TypeError:
        return False
