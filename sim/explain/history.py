"""Folding of a recorded run: a history per request, and per replica the causes of waiting.

A request's history alternates between waits in the queue and spans of running; each ends where the next
begins. O(what changed) per step, by the counting rules of `sim/record/recorder.py`. Outputs are numbered per
replica in order; nothing here may depend on how many steps an output (a decode run) holds.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass, field

from sundog.actors.core.acceptance import Acceptance
from sundog.actors.core.batch import Chunk, Lack
from sundog.sim.explain.journal_reader import Record
from sundog.sim.record.journal_rows import (
    Admitted,
    Arrival,
    Chosen,
    Drafted,
    Header,
    JournalEnd,
    JournalStep,
    Lost,
    Preempted,
    Rank,
)


@dataclass(slots=True)
class Wait:
    """Wait in the queue from `start_s` to `end_s`.

    The steps of the replica's outputs from `first` up to, not including, `stop` began with the request in the
    queue; output `stop` admitted it, if it was admitted. `turn` is then the number of earlier admissions of
    the replica, else None.
    """

    num_tokens: int
    """Tokens it had to compute to run, without prefix hits."""
    start_s: float
    end_s: float | None = None
    first: int = 0
    stop: int = 0
    turn: int | None = None
    reached_s: float | None = None
    """Time at which the request left the API processes of a simulated server."""


@dataclass(slots=True)
class RunningSpan:
    """Running period from `start_s` to `end_s`: the request computes its known tokens, then one token a step.

    `start_step` counts the replica's steps. `most_tokens` is the most known tokens in any earlier period.
    """

    start_s: float
    start_step: int
    admitted: Admitted
    chunks: list[int] = field(default_factory=list)
    catch_up_steps: int = 0
    caught_up_s: float | None = None
    stalls: list[tuple[float, float]] = field(default_factory=list)
    end_s: float | None = None
    num_output_tokens: int = 0
    num_computed_tokens: int = 0
    most_tokens: int = 0
    preempted: Preempted | None = None
    range_start: int | None = None

    @property
    def rehit_tokens(self) -> int:
        """Tokens computed in an earlier span and found in the prefix cache."""
        return min(self.most_tokens, self.admitted.num_hit_tokens)

    @property
    def recomputed_tokens(self) -> int:
        """Tokens computed in an earlier span and again in this one."""
        again = min(self.most_tokens, self.num_computed_tokens) - self.admitted.num_hit_tokens
        return max(again, 0)

    def close_range(self, stop: int) -> None:
        """End the current range of steps with a token each before step `stop`."""
        start, self.range_start = self.range_start, None
        if start is not None and stop >= start:
            # The first token of a range comes with its chunk; each later one computes one more.
            self.num_computed_tokens += stop - start - 1
            self.num_output_tokens += stop - start


@dataclass(slots=True)
class RequestHistory:
    """Waits and spans of one request; `replica` is None until one is known."""

    arrival: Arrival
    waits: list[Wait]
    spans: list[RunningSpan] = field(default_factory=list)
    replica: int | None = None
    first_token_s: float | None = None
    end_s: float | None = None
    reason: str | None = None
    ranks: list[tuple[int, Rank]] = field(default_factory=list)
    """Known ranks of the request, each from an output of its replica on."""
    refusal: str | None = None
    """Reason why the policy refused it, if it did."""
    drafts: Acceptance = field(default_factory=Acceptance)
    """Verified and accepted drafts of the request."""

    @property
    def request_id(self) -> str:
        return self.arrival.request_id

    def rank_at(self, output: int) -> Rank | None:
        """Return its rank as last known at an output, or else as first known."""
        known = bisect_right(self.ranks, output, key=lambda pair: pair[0])
        return self.ranks[max(known - 1, 0)][1] if self.ranks else None

    @property
    def num_output_tokens(self) -> int:
        return sum(span.num_output_tokens for span in self.spans)

    @property
    def is_running(self) -> bool:
        return self.end_s is None and len(self.spans) == len(self.waits)


@dataclass(slots=True)
class Segment:
    """Consecutive steps in which the same request was next in the queue and lacked the same thing.

    `head` is None if no request had to wait. `free_blocks` and `num_running` are those of the first step,
    after planning.
    """

    first: int
    start_s: float
    head: str | None
    reason: Lack | None
    free_blocks: int | None
    num_running: int


@dataclass(slots=True)
class RecordedQueue:
    """Queue of one replica: when outputs began, and what kept requests waiting."""

    starts_s: "array[float]" = field(default_factory=lambda: array("d"))
    first_steps: "array[int]" = field(default_factory=lambda: array("q"))
    free_blocks: "array[int]" = field(default_factory=lambda: array("q"))
    """Free blocks at the end of the step, or of the last step of a run."""
    num_steps: int = 0
    last_end_s: float = 0.0
    num_running: int = 0
    segments: list[Segment] = field(default_factory=list)
    admissions: "array[int]" = field(default_factory=lambda: array("q"))
    """Number of the output with which each request was admitted, in order of admission."""
    admitted: list[str] = field(default_factory=list)
    """Id of each admitted request, in the same order."""
    num_computed_tokens: int = 0

    def steps_before(self, output: int) -> int:
        """Return the number of steps before an output, or of all if it is past the last."""
        return self.first_steps[output] if output < len(self.first_steps) else self.num_steps

    def segment_at(self, output: int) -> int:
        """Return the number of the segment of an output."""
        return bisect_right(self.segments, output, key=lambda segment: segment.first) - 1

    def segment_end_s(self, number: int) -> float:
        if number + 1 < len(self.segments):
            return self.segments[number + 1].start_s
        return self.last_end_s

    def admitted_first(self, wait: Wait) -> int | None:
        """Return the number of requests admitted while another waited, None if that one was never
        admitted.
        """
        return None if wait.turn is None else wait.turn - bisect_left(self.admissions, wait.first)


class HistoryError(ValueError):
    """Raised for a record that contradicts itself."""


class History:
    """History of the run so far; `observe` every record, then `end` it."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.requests: dict[str, RequestHistory] = {}
        self.queues: defaultdict[int, RecordedQueue] = defaultdict(RecordedQueue)
        self.choices: dict[str, Chosen] = {}
        self.cut_off = False

    def observe(self, record: Record) -> None:
        """Add one record; raises HistoryError if it cannot follow the earlier ones."""
        if isinstance(record, Arrival):
            self._arrive(record)
        elif isinstance(record, Lost):
            self._lose(record)
        elif isinstance(record, Chosen):
            self.choices |= dict.fromkeys(record.request_ids, record)
        else:
            self._step(record)

    @property
    def until_s(self) -> float:
        """End of the last step, in seconds."""
        return max((queue.last_end_s for queue in self.queues.values()), default=0.0)

    def end(self) -> None:
        """Finish the record: unfinished requests end with it and have `reason` None."""
        last_s = self.until_s
        for request in self.requests.values():
            if request.replica is None and len(self.queues) == 1:
                self._enter(request, next(iter(self.queues)))
            if request.end_s is not None:
                continue
            queue = None if request.replica is None else self.queues[request.replica]
            self._cut(request, queue, max(last_s, request.waits[-1].start_s))

    def _cut(self, request: RequestHistory, queue: RecordedQueue | None, end_s: float) -> None:
        if request.is_running and queue is not None:
            span = request.spans[-1]
            span.close_range(queue.num_steps)
            span.end_s = max(end_s, span.start_s)
        else:
            wait = request.waits[-1]
            wait.end_s = end_s
            if queue is not None:
                wait.stop = len(queue.starts_s)

    def _arrive(self, arrival: Arrival) -> None:
        if arrival.request_id in self.requests:
            raise HistoryError(f"request {arrival.request_id!r} arrived twice")
        wait = Wait(arrival.num_prompt_tokens, arrival.time_s)
        self.requests[arrival.request_id] = RequestHistory(arrival, [wait])

    def _lose(self, lost: Lost) -> None:
        queue = self.queues.get(lost.replica)
        if queue is not None:
            queue.num_running = 0
        for name in lost.request_ids:
            request = self._request(name, "loses")
            if queue is None or request.end_s is not None:
                continue
            if request.first_token_s is None and name not in lost.in_batch:
                arrival = request.arrival
                request.waits, request.spans = [Wait(arrival.num_prompt_tokens, arrival.time_s)], []
                request.replica = None
            else:
                self._cut(request, queue, lost.time_s)
                request.end_s, request.reason = lost.time_s, "error"

    def _step(self, step: JournalStep) -> None:
        queue = self.queues[step.replica]
        if queue.starts_s and step.start_s < queue.starts_s[-1]:
            raise HistoryError(f"step {step.step} began before the step that came before it")
        index = len(queue.starts_s)
        queue.starts_s.append(step.start_s)
        queue.first_steps.append(queue.num_steps)
        queue.free_blocks.append(step.num_free_blocks)
        for name, rank in step.ranks:
            if (ranked := self.requests.get(name)) is not None:
                ranked.ranks.append((index, rank))
        self._reach(step)
        entering = {admitted.request_id for admitted in step.admitted} if step.preempted else ()
        for preempted in step.preempted:
            if preempted.for_request in entering:
                preempted = preempted._replace(cause="urgency")
            self._preempt(preempted, step, queue, index)
        for admitted in step.admitted:
            self._admit(admitted, step, queue, index)
        for chunk in step.chunks:
            self._compute(chunk, step, queue)
        for drafted in step.drafts:
            self._accept(drafted, queue)
        for name in step.idle:
            self._stall(name, step, queue)
        self._block(step, queue, index)
        queue.num_computed_tokens += step.num_decodes * len(step.ends_s)
        queue.num_steps += len(step.ends_s)
        queue.last_end_s = step.ends_s[-1] if step.ends_s else step.start_s
        for ended in step.ended:
            self._finish(ended, step, queue, index)

    def _reach(self, step: JournalStep) -> None:
        for name, reached_s in step.reached_s:
            if (known := self.requests.get(name)) is not None:
                known.waits[-1].reached_s = reached_s

    def _preempt(self, preempted: Preempted, step: JournalStep, queue: RecordedQueue, index: int) -> None:
        if (request := self._running(preempted.request_id, "preempts")) is None:
            return
        span = request.spans[-1]
        span.close_range(queue.num_steps)
        span.end_s, span.preempted = step.start_s, preempted
        queue.num_running -= 1
        known = request.arrival.num_prompt_tokens + request.num_output_tokens
        request.waits.append(Wait(known, step.start_s, end_s=None, first=index, stop=index))

    def _admit(self, admitted: Admitted, step: JournalStep, queue: RecordedQueue, index: int) -> None:
        request = self._request(admitted.request_id, "admits")
        if request.end_s is not None:
            return
        if request.is_running:
            raise HistoryError(f"step {step.step} admits {request.request_id!r}, which does not wait")
        wait = request.waits[-1]
        if (now_s := step.start_s) < wait.start_s:
            raise HistoryError(f"request {request.request_id!r} was admitted before it arrived")
        wait.end_s, wait.stop, wait.turn = now_s, index, len(queue.admissions)
        self._enter(request, step.replica)
        span = RunningSpan(step.start_s, queue.num_steps, admitted)
        span.num_computed_tokens = admitted.num_hit_tokens
        if request.spans:
            last = request.spans[-1]
            span.most_tokens = max(last.most_tokens, last.num_computed_tokens)
        request.spans.append(span)
        queue.num_running += 1
        queue.admissions.append(index)
        queue.admitted.append(request.request_id)

    def _compute(self, chunk: Chunk, step: JournalStep, queue: RecordedQueue) -> None:
        queue.num_computed_tokens += chunk.num_tokens
        if (request := self._running(chunk.request_id, "computes")) is None:
            return
        span = request.spans[-1]
        span.chunks.append(chunk.num_tokens)
        span.num_computed_tokens += chunk.num_tokens
        span.catch_up_steps = queue.num_steps - span.start_step + 1
        if chunk.samples and step.ends_s:
            span.range_start = queue.num_steps
            span.caught_up_s = step.ends_s[0]
            if request.first_token_s is None:
                request.first_token_s = step.ends_s[0]

    def _accept(self, drafted: Drafted, queue: RecordedQueue) -> None:
        queue.num_computed_tokens += drafted.num_drafts
        if (request := self._running(drafted.request_id, "verifies drafts of")) is not None:
            # Accepted drafts are tokens besides the one that the step gives anyway.
            name, num_accepted = drafted.request_id, drafted.num_accepted
            request.drafts.add([(name, drafted.num_drafts)], [(name, drafted.num_sampled)])
            request.spans[-1].num_computed_tokens += num_accepted
            request.spans[-1].num_output_tokens += num_accepted

    def _stall(self, name: str, step: JournalStep, queue: RecordedQueue) -> None:
        if (request := self._running(name, "idles")) is None:
            return
        span = request.spans[-1]
        if span.range_start is not None:
            span.close_range(queue.num_steps)
            # The next range begins with a decode, which computes a token as a chunk does not.
            span.num_computed_tokens += 1
            span.range_start = queue.num_steps + len(step.ends_s)
        if step.ends_s:
            span.stalls.append((step.start_s, step.ends_s[-1]))

    def _finish(self, ended: JournalEnd, step: JournalStep, queue: RecordedQueue, index: int) -> None:
        request = self._request(ended.request_id, "ends")
        if request.end_s is not None:
            raise HistoryError(f"request {ended.request_id!r} ended twice")
        end_s = step.ends_s[-1] if step.ends_s else step.start_s
        if request.is_running:
            span = request.spans[-1]
            first = queue.num_steps - len(step.ends_s)
            span.close_range(first + ended.num_tokens)
            span.end_s = end_s
            queue.num_running -= 1
        else:
            wait = request.waits[-1]
            end_s = max(end_s, wait.start_s)
            wait.end_s, wait.stop = end_s, index + 1
            self._enter(request, step.replica)
        if not request.num_output_tokens:
            request.first_token_s = None
        request.end_s, request.reason, request.refusal = end_s, ended.reason, ended.error

    def _block(self, step: JournalStep, queue: RecordedQueue, index: int) -> None:
        head, reason = step.blocked or (None, None)
        last = queue.segments[-1] if queue.segments else None
        if last is None or (last.head, last.reason) != (head, reason):
            free = step.num_free_blocks_planned
            queue.segments.append(
                Segment(
                    index,
                    step.start_s,
                    head=head,
                    reason=reason,
                    free_blocks=free,
                    num_running=queue.num_running,
                )
            )

    def _request(self, name: str, does: str) -> RequestHistory:
        if (request := self.requests.get(name)) is None:
            raise HistoryError(f"the step {does} {name!r}, which never arrived")
        return request

    def _running(self, name: str, does: str) -> RequestHistory | None:
        """Return the history of a running request; None if it has ended.

        Under async scheduling the next step has been planned when the end of a request is known.
        """
        request = self._request(name, does)
        if request.end_s is not None:
            return None
        if not request.is_running:
            raise HistoryError(f"the step {does} {name!r}, which does not run")
        return request

    def _enter(self, request: RequestHistory, replica: int) -> None:
        if request.replica is None:
            request.replica = replica
            wait = request.waits[0]
            reached_s = wait.start_s if wait.reached_s is None else wait.reached_s
            wait.first = bisect_left(self.queues[replica].starts_s, reached_s)
            wait.stop = max(wait.stop, wait.first)
