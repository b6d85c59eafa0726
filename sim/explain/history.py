"""Folding a recorded run: a history per request, and per replica what kept its queue waiting.

A request's history alternates between waits in the queue and spans of running; each ends where the
next begins. O(what changed) per step, as in `sim/record/recorder.py`, whose counting rules it shares.
Outputs are numbered per replica in order; a decode run is one output of many steps, so nothing
here may depend on how steps are grouped into outputs.
"""

from bisect import bisect_left

from actors.core.batch import Chunk
from sim.explain.journal_reader import Record
from sim.explain.spans import Queue, RequestHistory, RunningSpan, Segment, Wait
from sim.record.journal_rows import Admitted, Arrival, Chosen, Drafted, Ended, Header, Lost, Preempted, Step


class HistoryError(ValueError):
    """The record contradicts itself."""


class History:
    """The run so far; feed it every record, then `end` it."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.requests: dict[str, RequestHistory] = {}
        self.queues: dict[int, Queue] = {}
        self.choices: dict[str, Chosen] = {}
        self.cut_off = False

    def observe(self, record: Record) -> None:
        """Take in one record; raises HistoryError if it cannot follow the ones before."""
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
        """The end of the last step."""
        return max((queue.last_end_s for queue in self.queues.values()), default=0.0)

    def end(self) -> None:
        """The record is over: what is under way ends with it, and keeps `reason` None."""
        last_s = self.until_s
        for request in self.requests.values():
            if request.replica is None and len(self.queues) == 1:
                self._enter(request, next(iter(self.queues)))
            if request.end_s is not None:
                continue
            end_s = max(last_s, request.waits[-1].start_s)
            if request.is_running and request.replica is not None:
                span = request.spans[-1]
                span.close_range(self.queues[request.replica].num_steps)
                span.end_s = max(end_s, span.start_s)
            else:
                request.waits[-1].end_s = end_s
                if request.replica is not None:
                    request.waits[-1].stop = len(self.queues[request.replica].starts_s)

    def _arrive(self, arrival: Arrival) -> None:
        if arrival.request_id in self.requests:
            raise HistoryError(f"request {arrival.request_id!r} arrived twice")
        wait = Wait(arrival.time_s, num_tokens=arrival.num_prompt_tokens)
        self.requests[arrival.request_id] = RequestHistory(arrival, [wait])

    def _lose(self, lost: Lost) -> None:
        """An engine crashed: requests with a token ended, the others wait as if they had just come."""
        queue = self.queues.get(lost.replica)
        if queue is not None:
            queue.num_running = 0
        for name in lost.request_ids:
            request = self._request(name, "loses")
            if queue is None or request.end_s is not None:
                continue
            if request.first_token_s is None:
                request.waits, request.spans, request.replica = [Wait(request.arrival.time_s)], [], None
                request.waits[0].num_tokens = request.arrival.num_prompt_tokens
            else:
                if request.is_running:
                    request.spans[-1].close_range(queue.num_steps)
                    request.spans[-1].end_s = lost.time_s
                else:
                    request.waits[-1].end_s, request.waits[-1].stop = lost.time_s, len(queue.starts_s)
                request.end_s, request.reason = lost.time_s, "error"

    # --- one step ------------------------------------------------------------------------------

    def _step(self, step: Step) -> None:
        queue = self.queues.get(step.replica)
        if queue is None:
            queue = self.queues[step.replica] = Queue()
        if queue.starts_s and step.start_s < queue.starts_s[-1]:
            raise HistoryError(f"step {step.step} began before the step that came before it")
        index = len(queue.starts_s)
        queue.begin(step.start_s, step.num_free_blocks)
        for name, rank in step.ranks:
            if (ranked := self.requests.get(name)) is not None:
                ranked.ranks.append((index, rank))
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

    def _preempt(self, preempted: Preempted, step: Step, queue: Queue, index: int) -> None:
        request = self._running(preempted.request_id, "preempts")
        if request is None:
            return
        span = request.spans[-1]
        span.close_range(queue.num_steps)
        span.end_s = step.start_s
        span.preempted = preempted
        queue.num_running -= 1
        prompt = request.arrival.num_prompt_tokens
        known = None if prompt is None else prompt + request.num_output_tokens
        request.waits.append(Wait(step.start_s, None, index, index, None, known))

    def _admit(self, admitted: Admitted, step: Step, queue: Queue, index: int) -> None:
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

    def _compute(self, chunk: Chunk, step: Step, queue: Queue) -> None:
        queue.num_computed_tokens += chunk.num_tokens
        request = self._running(chunk.request_id, "computes")
        if request is None:
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

    def _accept(self, drafted: Drafted, queue: Queue) -> None:
        queue.num_computed_tokens += drafted.num_drafts
        if (request := self._running(drafted.request_id, "verifies drafts of")) is not None:
            request.accept(drafted)

    def _stall(self, name: str, step: Step, queue: Queue) -> None:
        request = self._running(name, "idles")
        if request is None:
            return
        span = request.spans[-1]
        if span.range_start is not None:
            span.close_range(queue.num_steps)
            # The next range begins with a decode, which computes a token as a chunk does not.
            span.num_computed_tokens += 1
            span.range_start = queue.num_steps + len(step.ends_s)
        if step.ends_s:
            span.stalls.append((step.start_s, step.ends_s[-1]))

    def _finish(self, ended: Ended, step: Step, queue: Queue, index: int) -> None:
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

    def _block(self, step: Step, queue: Queue, index: int) -> None:
        head, reason = step.blocked or (None, None)
        last = queue.segments[-1] if queue.segments else None
        if last is None or (last.head, last.reason) != (head, reason):
            segment = Segment(
                index, step.start_s, head, reason, step.num_free_blocks_planned, queue.num_running
            )
            queue.segments.append(segment)

    # --- histories ---------------------------------------------------------------------------------

    def _request(self, name: str, does: str) -> RequestHistory:
        request = self.requests.get(name)
        if request is None:
            raise HistoryError(f"the step {does} {name!r}, which never arrived")
        return request

    def _running(self, name: str, does: str) -> RequestHistory | None:
        """The history of a request that runs; None if it has ended.

        Under async scheduling the next step has been planned when the end of a request is known.
        """
        request = self._request(name, does)
        if request.end_s is not None:
            return None
        if not request.is_running:
            raise HistoryError(f"the step {does} {name!r}, which does not run")
        return request

    def _enter(self, request: RequestHistory, replica: int) -> None:
        """A replica names a request for the first time: the request has waited there since it arrived."""
        if request.replica is None:
            request.replica = replica
            wait = request.waits[0]
            wait.first = bisect_left(self.queues[replica].starts_s, wait.start_s)
            wait.stop = max(wait.stop, wait.first)
