"""A recorded run at some of its instants, as the live page is told of a server by `metrics/snapshot.py`.

A journal keeps the instants at which a request's state changed, not each of its tokens: between them tokens
are counted as if they had come evenly. It keeps no block ids: blocks are laid out by request. What the live
page forecasts of a waiting request is known here: it is what came.
"""

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from actors.metrics.measured import percentiles, short
from sim.explain.history import History, RecordedQueue, RequestHistory, RunningSpan

Json = dict[str, object]


def span_at(request: RequestHistory, time_s: float) -> RunningSpan | None:
    """Its span of running at an instant, None while it waits."""
    for span in request.spans:
        if span.start_s <= time_s and (span.end_s is None or time_s < span.end_s):
            return span
    return None


def admission_s(request: RequestHistory, time_s: float) -> float:
    """Find when a request will run next."""
    return min((span.start_s for span in request.spans if span.start_s > time_s), default=float("inf"))


def tokens_at(request: RequestHistory, time_s: float) -> tuple[int, int]:
    """Count the tokens that a request has computed, and those it has generated."""
    computed = generated = 0
    for span in request.spans:
        if span.start_s > time_s:
            break
        hit, end_s = span.admitted.num_hit_tokens, span.end_s if span.end_s is not None else time_s
        caught_up_s = end_s if span.caught_up_s is None else span.caught_up_s
        prefilled = part(span.start_s, caught_up_s, time_s)
        decoded = part(caught_up_s, end_s, time_s)
        computed = hit + int(prefilled * sum(span.chunks))
        if span.caught_up_s is not None and time_s >= span.caught_up_s:
            new = max(1, int(decoded * span.num_output_tokens)) if span.num_output_tokens else 0
            generated, computed = generated + new, computed + max(new - 1, 0)
    return computed, generated


def part(start_s: float, end_s: float, time_s: float) -> float:
    """Give the share of a span that has passed, from 0 to 1."""
    if end_s <= start_s:
        return float(time_s >= end_s)
    return min(max(time_s - start_s, 0.0) / (end_s - start_s), 1.0)


def ttft_s(request: RequestHistory) -> float | None:
    """From its arrival to its first token, None if there was none."""
    return None if request.first_token_s is None else request.first_token_s - request.arrival.time_s


def tpot_s(request: RequestHistory) -> float | None:
    """From token to token, None with fewer than two."""
    if request.first_token_s is None or request.end_s is None or request.num_output_tokens < 2:
        return None
    return (request.end_s - request.first_token_s) / (request.num_output_tokens - 1)


def request_row(request: RequestHistory, time_s: float) -> Json:
    arrival = request.arrival
    computed, generated = tokens_at(request, time_s)
    begun = [span for span in request.spans if span.start_s <= time_s]
    return {
        "id": request.request_id,
        "tenant": arrival.tenant,
        "adapter": None,
        "replica": request.replica,
        "num_prompt_tokens": arrival.num_prompt_tokens,
        "num_cached_tokens": begun[0].admitted.num_hit_tokens if begun else 0,
        "num_tokens": generated,
        "num_computed_tokens": computed,
        "max_tokens": arrival.max_tokens,
        "num_preemptions": sum(span.preempted is not None and (span.end_s or 0) <= time_s for span in begun),
    }


def running_row(request: RequestHistory, time_s: float, block_size: int) -> Json:
    span, first_s = span_at(request, time_s), request.first_token_s
    has_first = first_s is not None and first_s <= time_s
    computed, generated = tokens_at(request, time_s)
    return request_row(request, time_s) | {
        "is_decoding": span is not None and span.caught_up_s is not None and span.caught_up_s <= time_s,
        "num_blocks": -(-max(computed, 1) // block_size),
        "num_own_blocks": -(-max(computed, 1) // block_size)
        - (0 if span is None else span.admitted.num_hit_tokens // block_size),
        "age_s": time_s - request.arrival.time_s,
        "ttft_s": first_s - request.arrival.time_s if first_s is not None and has_first else None,
        "tpot_s": (time_s - first_s) / (generated - 1) if first_s is not None and generated > 1 else None,
    }


def ended_row(request: RequestHistory) -> Json:
    end_s = request.end_s or 0.0
    return request_row(request, end_s) | {
        "num_tokens": request.num_output_tokens,
        "reason": request.reason,
        "time_s": end_s,
        "ttft_s": ttft_s(request),
        "tpot_s": tpot_s(request),
        "e2e_s": end_s - request.arrival.time_s,
    }


MOST_SHOWN = 300
NUM_ENDED, NUM_MEASURED = 30, 100


@dataclass(slots=True)
class Totals:
    """Sums of what a replica had done up to the last instant."""

    tokens: int = 0
    """Of requests that have ended."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    busy_s: float = 0.0
    ended: Counter[str] = field(default_factory=Counter)


class Instants:
    """Walks once through a history; ask for instants in their order."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._replicas = sorted(history.queues) or [0]
        self._totals = {replica: Totals() for replica in self._replicas}
        self._to_come = deque(sorted(history.requests.values(), key=lambda each: each.arrival.time_s))
        self._active: dict[str, RequestHistory] = {}
        self._ended: deque[RequestHistory] = deque(maxlen=500)
        self._num_blocks = (history.header.num_blocks or 1) - 1
        self._last_s = 0.0

    def at(self, time_s: float) -> Json:
        """The run at an instant."""
        self._move_to(time_s)
        active = self._active.values()
        running = [each for each in active if span_at(each, time_s) is not None]
        waiting = [each for each in active if span_at(each, time_s) is None]
        for replica in {_replica(each) for each in active}:
            self._totals[replica].busy_s += time_s - self._last_s
        self._last_s = time_s
        waiting.sort(key=lambda each: (len(each.spans) == 0, admission_s(each, time_s), each.arrival.time_s))
        shown = [
            running_row(each, time_s, self._history.header.block_size or 1) for each in running[:MOST_SHOWN]
        ]
        began = [each for each in (*self._ended, *running) if each.first_token_s is not None]
        return {
            "time_s": time_s,
            "at": time_s,
            "engines": [self._engine(replica, running, waiting, time_s) for replica in self._replicas],
            "running": shown,
            "num_running": len(running),
            "waiting": [
                self._waiting(each, waiting, place, time_s) for place, each in enumerate(waiting[:MOST_SHOWN])
            ],
            "num_waiting": len(waiting),
            "blocks": [
                list(_laid_out(shown, replica, self._held(replica, time_s))) for replica in self._replicas
            ],
            "ended": [ended_row(each) for each in list(self._ended)[: -NUM_ENDED - 1 : -1]],
            **self._by_tenant(running, waiting),
            "ttft_s": percentiles(
                (each.first_token_s - each.arrival.time_s, 1)
                for each in began
                if each.first_token_s is not None and each.first_token_s <= time_s
            ),
            "itl_s": percentiles((gap_s, 1) for each in self._ended if (gap_s := tpot_s(each)) is not None),
            "forecasts": None,
        }

    def _by_tenant(self, running: Sequence[RequestHistory], waiting: Sequence[RequestHistory]) -> Json:
        """What each tenant had under way, and what the last requests to end had measured."""
        tenants: dict[str | None, list[int]] = {}
        for place, requests in enumerate((running, waiting)):
            for each in requests:
                tenants.setdefault(each.arrival.tenant, [0, 0])[place] += 1
        return {
            "tenants": [(name, *counts, None) for name, counts in tenants.items()],
            "measured": [
                (each.arrival.tenant, short(ttft_s(each)), short(tpot_s(each)), None)
                for each in list(self._ended)[-NUM_MEASURED:]
                if each.reason != "abort"
            ],
        }

    def _move_to(self, time_s: float) -> None:
        """Take in who came and who ended since the last instant."""
        while self._to_come and self._to_come[0].arrival.time_s <= time_s:
            request = self._to_come.popleft()
            self._active[request.request_id] = request
        over = [each for each in self._active.values() if each.end_s is not None and each.end_s <= time_s]
        for request in sorted(over, key=lambda each: each.end_s or 0.0):
            del self._active[request.request_id]
            self._ended.append(request)
            totals = self._totals[_replica(request)]
            totals.ended[request.reason or "error"] += 1
            totals.tokens += request.num_output_tokens
            totals.preemptions += sum(span.preempted is not None for span in request.spans)
            if request.first_token_s is not None:
                totals.prompt_tokens += request.arrival.num_prompt_tokens
                totals.cached_tokens += request.spans[0].admitted.num_hit_tokens

    def _held(self, replica: int, time_s: float) -> int:
        """How many of a replica's blocks requests held."""
        queue = self._history.queues.get(replica)
        if queue is None or not queue.starts_s or time_s < queue.starts_s[0]:
            return 0
        return max(self._num_blocks - queue.free_blocks[_output(queue, time_s)], 0)

    def _engine(
        self,
        replica: int,
        running: Sequence[RequestHistory],
        waiting: Sequence[RequestHistory],
        time_s: float,
    ) -> Json:
        totals, queue = self._totals[replica], self._history.queues.get(replica, RecordedQueue())
        own = [each for each in running if _replica(each) == replica]
        active = [each for each in (*running, *waiting) if _replica(each) == replica]
        begun = [each for each in active if each.first_token_s is not None and each.first_token_s <= time_s]
        held = self._held(replica, time_s)
        segment = queue.segments[queue.segment_at(_output(queue, time_s))] if queue.segments else None
        return {
            "is_up": True,
            "why_down": None,
            "next_start_in_s": None,
            "has_other_policy": False,
            "num_restarts": 0,
            "num_running": len(own),
            "num_waiting": len(active) - len(own),
            "num_blocks": self._num_blocks,
            "block_size": self._history.header.block_size or 1,
            "kv_usage": held / self._num_blocks if self._num_blocks else 0.0,
            "blocked_by": None if segment is None or not waiting else segment.reason,
            "num_steps": _steps(queue, time_s),
            "busy_s": totals.busy_s,
            "num_prompt_tokens": totals.prompt_tokens + sum(e.arrival.num_prompt_tokens for e in begun),
            "num_cached_tokens": totals.cached_tokens
            + sum(e.spans[0].admitted.num_hit_tokens for e in begun),
            "num_generation_tokens": totals.tokens + sum(tokens_at(each, time_s)[1] for each in active),
            "num_preemptions": totals.preemptions,
            "ended": dict(totals.ended),
        }

    def _waiting(
        self, request: RequestHistory, waiting: Sequence[RequestHistory], place: int, time_s: float
    ) -> Json:
        queue = self._history.queues.get(_replica(request))
        output = 0 if queue is None else _output(queue, time_s)
        segment = None if queue is None or not queue.segments else queue.segments[queue.segment_at(output)]
        lacks = None if segment is None or segment.head != request.request_id else segment.reason
        first_s = request.first_token_s
        return request_row(request, time_s) | {
            "age_s": time_s - request.arrival.time_s,
            "lacks": lacks,
            "behind": waiting[place - 1].request_id if place else None,
            "rank": request.rank_at(output),
            "num_losses": 0,
            "forecast_ttft_s": None if first_s is None else first_s - request.arrival.time_s,
            "forecast_range_s": None,
        }


def _output(queue: RecordedQueue, time_s: float) -> int:
    """The output that was under way at an instant."""
    return max(bisect_right(queue.starts_s, time_s) - 1, 0)


def _steps(queue: RecordedQueue, time_s: float) -> int:
    """How many steps had been done, those of a run evenly."""
    if not queue.starts_s:
        return 0
    output = _output(queue, time_s)
    before, after = queue.steps_before(output), queue.steps_before(output + 1)
    is_last = output + 1 == len(queue.starts_s)
    end_s = queue.last_end_s if is_last else queue.starts_s[output + 1]
    return before + int(part(queue.starts_s[output], end_s, time_s) * (after - before))


def _replica(request: RequestHistory) -> int:
    return request.replica or 0


def _laid_out(running: Sequence[Json], replica: int, num_held: int) -> Iterator[tuple[int, int, int]]:
    """Blocks side by side: (first block, how many, holder), an index into `running`, or -1 for the rest.

    Where there are blocks for all that requests hold, each block has one holder, and those taken ahead are
    spread evenly. Where there are fewer, some are held by several: then each has what it computed itself.
    """
    own = [number for number, each in enumerate(running) if (each["replica"] or 0) == replica]
    counts = [_count(running[number], "num_blocks") for number in own]
    if own and len(running) < MOST_SHOWN and (num_ahead := num_held - sum(counts)) >= 0:
        each_more, num_more = divmod(num_ahead, len(own))
        counts = [count + each_more + (place < num_more) for place, count in enumerate(counts)]
    else:
        counts = [_count(running[number], "num_own_blocks") for number in own]
    first = 1
    for number, count in zip(own, counts, strict=True):
        count = min(count, num_held + 1 - first)
        if count > 0:
            yield first, count, number
            first += count
    if first <= num_held:
        yield first, num_held + 1 - first, -1


def _count(running: Json, name: str) -> int:
    value = running[name]
    assert isinstance(value, int)
    return value
