"""Snapshots of a recorded run in the form of a server's Metrics, for the live page.

A journal has the times at which a request's state changed, not those of each token: between them tokens are
counted as if evenly spaced. It has no block ids: blocks are laid out by request. The live page's forecast of
a waiting request is replaced by its actual first token.
"""

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

from sundog.actors.core.batch import Blocked
from sundog.actors.core.request import Submit
from sundog.actors.metrics.forecast import FirstToken
from sundog.actors.metrics.measured import Measured
from sundog.actors.metrics.metrics import Metrics
from sundog.actors.metrics.snapshot import MOST_SHOWN, snapshot
from sundog.actors.metrics.totals import EngineTotals
from sundog.sim.explain.history import History, RecordedQueue, RequestHistory, RunningSpan

Json = dict[str, object]


def span_at(request: RequestHistory, time_s: float) -> RunningSpan | None:
    """Return its span of running at a time, None while it waits."""
    for span in request.spans:
        if span.start_s <= time_s and (span.end_s is None or time_s < span.end_s):
            return span
    return None


def turn_s(request: RequestHistory, time_s: float) -> float:
    """Return when a request runs next; 0 for a running one."""
    if span_at(request, time_s) is not None:
        return 0.0
    return min((span.start_s for span in request.spans if span.start_s > time_s), default=float("inf"))


def part(start_s: float, end_s: float, time_s: float) -> float:
    """Return the share of a time span that has passed, from 0 to 1."""
    if end_s <= start_s:
        return float(time_s >= end_s)
    return min(max(time_s - start_s, 0.0) / (end_s - start_s), 1.0)


def measured_at(request: RequestHistory, time_s: float) -> Measured:
    """Return the measurements of a request up to a time, without its blocks."""
    arrival = request.arrival
    of = Measured(
        Submit(
            arrival.request_id,
            arrival.time_s,
            arrival.num_prompt_tokens,
            arrival.max_tokens,
            tenant=arrival.tenant,
        )
    )
    of.replica = request.replica
    begun = [span for span in request.spans if span.start_s <= time_s]
    for span in begun:
        end_s = span.end_s if span.end_s is not None else time_s
        caught_up_s = end_s if span.caught_up_s is None else span.caught_up_s
        computed = int(part(span.start_s, caught_up_s, time_s) * sum(span.chunks))
        of.num_computed_tokens = span.admitted.num_hit_tokens + computed
        if span.caught_up_s is not None and time_s >= span.caught_up_s and span.num_output_tokens:
            new = max(1, int(part(caught_up_s, end_s, time_s) * span.num_output_tokens))
            of.num_tokens += new
            of.num_computed_tokens += new - 1
        of.num_preemptions += span.preempted is not None and end_s <= time_s
    if begun:
        of.num_cached_tokens = begun[0].admitted.num_hit_tokens
    if request.first_token_s is not None and request.first_token_s <= time_s:
        of.first_s, of.last_s = request.first_token_s, min(time_s, request.end_s or time_s)
    return of


def added_by(request: Measured) -> dict[str, int]:
    """Return what a request adds to the totals of its engine, by name."""
    is_begun = request.first_s is not None
    return {
        "num_generation_tokens": request.num_tokens,
        "num_preemptions": request.num_preemptions,
        "num_prompt_tokens": request.num_prompt_tokens if is_begun else 0,
        "num_cached_tokens": request.num_cached_tokens if is_begun else 0,
    }


class Instants:
    """Single pass through a history; request snapshots in ascending order."""

    def __init__(self, history: History) -> None:
        numbers = range(max(history.queues, default=0) + 1)
        self._queues = [history.queues.get(number, RecordedQueue()) for number in numbers]
        self._metrics = Metrics(len(self._queues), max_model_len=1)
        for engine in self._metrics.engines:
            engine.num_blocks = (history.header.num_blocks or 1) - 1
            engine.block_size = history.header.block_size or 1
        self._over = [Counter[str]() for _ in self._queues]
        """Totals of requests that have ended, by engine."""
        self._to_come = deque(sorted(history.requests.values(), key=lambda each: each.arrival.time_s))
        self._active: dict[str, RequestHistory] = {}
        self._last_s = 0.0

    def at(self, time_s: float) -> Json:
        """Return the snapshot at a time."""
        metrics = self._metrics
        for replica in {each.replica or 0 for each in self._moved_to(time_s)}:
            metrics.engines[replica].busy_s += time_s - self._last_s
        self._last_s = time_s
        in_turn = sorted(self._active.values(), key=lambda each: turn_s(each, time_s))
        metrics.requests = {each.request_id: self._measured(each, time_s) for each in in_turn}
        here = metrics.requests.values()
        metrics.recent.ttft_s.clear()
        ended = (request for request, _, _ in metrics.recent.ended)
        metrics.recent.ttft_s.extend(each.ttft_s for each in (*ended, *here) if each.ttft_s is not None)
        for replica in range(len(self._queues)):
            self._add_up(replica, time_s)
        coming = {
            each.request_id: each.first_token_s - time_s for each in in_turn if each.first_token_s is not None
        }
        found = snapshot(metrics, time_s, {name: FirstToken(s, s, s) for name, s in coming.items()})
        shown = [each for each in here if each.is_running][:MOST_SHOWN]
        blocks = [list(laid_out(shown, *each)) for each in enumerate(metrics.engines)]
        return found | {"at": time_s, "blocks": blocks}

    def _moved_to(self, time_s: float) -> Iterable[RequestHistory]:
        while self._to_come and self._to_come[0].arrival.time_s <= time_s:
            request = self._to_come.popleft()
            self._active[request.request_id] = request
        over = [(each.end_s, each) for each in self._active.values() if each.end_s is not None]
        for end_s, request in sorted([each for each in over if each[0] <= time_s], key=itemgetter(0)):
            del self._active[request.request_id]
            of, reason, replica = measured_at(request, end_s), request.reason or "error", request.replica or 0
            self._metrics.engines[replica].ended[reason] += 1
            self._over[replica].update(added_by(of))
            self._metrics.recent.ended.append((of, reason, end_s))
            if of.tpot_s is not None:
                self._metrics.recent.gaps.append((of.tpot_s, 1))
        return self._active.values()

    def _measured(self, request: RequestHistory, time_s: float) -> Measured:
        of, queue = measured_at(request, time_s), self._queues[request.replica or 0]
        of.rank = request.rank_at(output_at(queue, time_s))
        if span_at(request, time_s) is not None:
            block_size = self._metrics.engines[0].block_size
            of.block_ids = list(range(-(-max(of.num_computed_tokens, 1) // block_size)))
        return of

    def _add_up(self, replica: int, time_s: float) -> None:
        engine, queue = self._metrics.engines[replica], self._queues[replica]
        own = [each for each in self._metrics.requests.values() if (each.replica or 0) == replica]
        totals = self._over[replica].copy()
        for each in own:
            totals.update(added_by(each))
        for name, value in totals.items():
            setattr(engine, name, value)
        engine.num_running = sum(each.is_running for each in own)
        engine.num_waiting = len(own) - engine.num_running
        engine.num_steps, engine.num_free_blocks, engine.blocked = 0, engine.num_blocks, None
        if not queue.starts_s or time_s < queue.starts_s[0]:
            return
        output = output_at(queue, time_s)
        before, after = queue.steps_before(output), queue.steps_before(output + 1)
        end_s = (*queue.starts_s[output + 1 : output + 2], queue.last_end_s)[0]
        engine.num_steps = before + int(part(queue.starts_s[output], end_s, time_s) * (after - before))
        engine.num_free_blocks = min(queue.free_blocks[output], engine.num_blocks)
        segment = queue.segments[queue.segment_at(output)]
        if engine.num_waiting and segment.head is not None and segment.reason is not None:
            engine.blocked = Blocked(segment.head, segment.reason)


def output_at(queue: RecordedQueue, time_s: float) -> int:
    """Return the output in progress at a time."""
    return max(bisect_right(queue.starts_s, time_s) - 1, 0)


def laid_out(
    running: Sequence[Measured], replica: int, engine: EngineTotals
) -> Iterator[tuple[int, int, int]]:
    """Return blocks side by side: (first block, count, holder), an index into `running`, or -1 for the rest.

    If there are enough blocks for all requests, each block has one holder, and those allocated ahead are
    spread evenly. Otherwise some have several holders: then each request shows only what it computed itself.
    """
    num_held = engine.num_blocks - engine.num_free_blocks
    own = [number for number, each in enumerate(running) if (each.replica or 0) == replica]
    counts = [len(running[number].block_ids) for number in own]
    if own and len(running) < MOST_SHOWN and (num_ahead := num_held - sum(counts)) >= 0:
        each_more, num_more = divmod(num_ahead, len(own))
        counts = [count + each_more + (place < num_more) for place, count in enumerate(counts)]
    else:
        cached = [running[number].num_cached_tokens // engine.block_size for number in own]
        counts = [count - shared for count, shared in zip(counts, cached, strict=True)]
    first = 1
    for number, count in zip(own, counts, strict=True):
        count = min(count, num_held + 1 - first)
        if count > 0:
            yield first, count, number
            first += count
    if first <= num_held:
        yield first, num_held + 1 - first, -1
