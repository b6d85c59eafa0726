"""Folding a recorded run: one life per request, and per replica what kept its queue waiting.

A life alternates between waits (in the queue) and stays (among the running); each ends where the
next begins. O(what changed) per step, as in `sim/record/recorder.py`, whose counting rules it shares.
Outputs are numbered per replica in order; a decode run is one output of many steps, so nothing
here may depend on how steps are grouped into outputs.
"""

from bisect import bisect_left

from actors.core.batch import Chunk
from sim.explain.lives import Life, Queue, Segment, Stay, Wait
from sim.explain.record import Record
from sim.record.journal_rows import Admitted, Arrival, Ended, Header, Lost, Preempted, Step


class HistoryError(ValueError):
    """The record contradicts itself."""


class History:
    """The run so far; feed it every record, then `end` it."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.lives: dict[str, Life] = {}
        self.queues: dict[int, Queue] = {}
        self.cut_off = False

    def observe(self, record: Record) -> None:
        """Take in one record; raises HistoryError if it cannot follow the ones before."""
        if isinstance(record, Arrival):
            self._arrive(record)
        elif isinstance(record, Lost):
            self._lose(record)
        else:
            self._step(record)

    @property
    def until_s(self) -> float:
        """The end of the last step."""
        return max((queue.last_end_s for queue in self.queues.values()), default=0.0)

    def end(self) -> None:
        """No more comes: what is under way ends with the record, and keeps `reason` None."""
        last_s = self.until_s
        for life in self.lives.values():
            if life.replica is None and len(self.queues) == 1:
                self._enter(life, next(iter(self.queues)))
            if life.end_s is not None:
                continue
            end_s = max(last_s, life.waits[-1].start_s)
            if life.is_running and life.replica is not None:
                stay = life.stays[-1]
                stay.close_range(self.queues[life.replica].num_steps)
                stay.end_s = max(end_s, stay.start_s)
            else:
                life.waits[-1].end_s = end_s
                if life.replica is not None:
                    life.waits[-1].stop = len(self.queues[life.replica].starts_s)

    def _arrive(self, arrival: Arrival) -> None:
        if arrival.request_id in self.lives:
            raise HistoryError(f"request {arrival.request_id!r} arrived twice")
        wait = Wait(arrival.time_s, num_tokens=arrival.num_prompt_tokens)
        self.lives[arrival.request_id] = Life(arrival, [wait])

    def _lose(self, lost: Lost) -> None:
        """An engine crashed: whoever had a token ended, the others wait as if they had just come."""
        queue = self.queues.get(lost.replica)
        if queue is not None:
            queue.num_running = 0
        for name in lost.request_ids:
            life = self._life(name, "loses")
            if queue is None or life.end_s is not None:
                continue
            if life.first_token_s is None:
                life.waits, life.stays, life.replica = [Wait(life.arrival.time_s)], [], None
                life.waits[0].num_tokens = life.arrival.num_prompt_tokens
            else:
                if life.is_running:
                    life.stays[-1].close_range(queue.num_steps)
                    life.stays[-1].end_s = lost.time_s
                else:
                    life.waits[-1].end_s, life.waits[-1].stop = lost.time_s, len(queue.starts_s)
                life.end_s, life.reason = lost.time_s, "error"

    # --- one step ------------------------------------------------------------------------------

    def _step(self, step: Step) -> None:
        queue = self.queues.get(step.replica)
        if queue is None:
            queue = self.queues[step.replica] = Queue()
        if queue.starts_s and step.start_s < queue.starts_s[-1]:
            raise HistoryError(f"step {step.step} began before the step that came before it")
        index = len(queue.starts_s)
        queue.starts_s.append(step.start_s)
        queue.first_steps.append(queue.num_steps)
        entering = {admitted.request_id for admitted in step.admitted} if step.preempted else ()
        for preempted in step.preempted:
            if preempted.for_request in entering:
                preempted = preempted._replace(cause="urgency")
            self._preempt(preempted, step, queue, index)
        for admitted in step.admitted:
            self._admit(admitted, step, queue, index)
        for chunk in step.chunks:
            self._compute(chunk, step, queue)
        for name in step.idle:
            self._stall(name, step, queue)
        self._block(step, queue, index)
        queue.num_computed_tokens += step.num_decodes * len(step.ends_s)
        queue.num_steps += len(step.ends_s)
        queue.last_end_s = step.ends_s[-1] if step.ends_s else step.start_s
        for ended in step.ended:
            self._finish(ended, step, queue, index)

    def _preempt(self, preempted: Preempted, step: Step, queue: Queue, index: int) -> None:
        life = self._running(preempted.request_id, "preempts")
        if life is None:
            return
        stay = life.stays[-1]
        stay.close_range(queue.num_steps)
        stay.end_s = step.start_s
        stay.preempted = preempted
        queue.num_running -= 1
        prompt = life.arrival.num_prompt_tokens
        known = None if prompt is None else prompt + life.num_output_tokens
        life.waits.append(Wait(step.start_s, None, index, index, None, known))

    def _admit(self, admitted: Admitted, step: Step, queue: Queue, index: int) -> None:
        life = self._life(admitted.request_id, "admits")
        if life.end_s is not None:
            return
        if life.is_running:
            raise HistoryError(f"step {step.step} admits {life.request_id!r}, which does not wait")
        wait = life.waits[-1]
        wait.end_s = step.start_s
        if wait.end_s < wait.start_s:
            raise HistoryError(f"request {life.request_id!r} was admitted before it arrived")
        wait.stop, wait.turn = index, len(queue.admissions)
        self._enter(life, step.replica)
        stay = Stay(step.start_s, queue.num_steps, admitted)
        stay.num_computed_tokens = admitted.num_hit_tokens
        if life.stays:
            last = life.stays[-1]
            stay.most_tokens = max(last.most_tokens, last.num_computed_tokens)
        life.stays.append(stay)
        queue.num_running += 1
        queue.admissions.append(index)

    def _compute(self, chunk: Chunk, step: Step, queue: Queue) -> None:
        queue.num_computed_tokens += chunk.num_tokens
        life = self._running(chunk.request_id, "computes")
        if life is None:
            return
        stay = life.stays[-1]
        stay.chunks.append(chunk.num_tokens)
        stay.num_computed_tokens += chunk.num_tokens
        stay.catch_up_steps = queue.num_steps - stay.start_step + 1
        if chunk.samples and step.ends_s:
            stay.range_start = queue.num_steps
            stay.caught_up_s = step.ends_s[0]
            if life.first_token_s is None:
                life.first_token_s = step.ends_s[0]

    def _stall(self, name: str, step: Step, queue: Queue) -> None:
        life = self._running(name, "idles")
        if life is None:
            return
        stay = life.stays[-1]
        if stay.range_start is not None:
            stay.close_range(queue.num_steps)
            # The next range begins with a decode, which computes a token as a chunk does not.
            stay.num_computed_tokens += 1
            stay.range_start = queue.num_steps + len(step.ends_s)
        if step.ends_s:
            stay.stalls.append((step.start_s, step.ends_s[-1]))

    def _finish(self, ended: Ended, step: Step, queue: Queue, index: int) -> None:
        life = self._life(ended.request_id, "ends")
        if life.end_s is not None:
            raise HistoryError(f"request {ended.request_id!r} ended twice")
        end_s = step.ends_s[-1] if step.ends_s else step.start_s
        if life.is_running:
            stay = life.stays[-1]
            first = queue.num_steps - len(step.ends_s)
            stay.close_range(first + ended.num_tokens)
            stay.end_s = end_s
            queue.num_running -= 1
        else:
            wait = life.waits[-1]
            end_s = max(end_s, wait.start_s)
            wait.end_s, wait.stop = end_s, index + 1
            self._enter(life, step.replica)
        if not life.num_output_tokens:
            life.first_token_s = None
        life.end_s, life.reason = end_s, ended.reason

    def _block(self, step: Step, queue: Queue, index: int) -> None:
        head, reason = step.blocked or (None, None)
        last = queue.segments[-1] if queue.segments else None
        if last is None or (last.head, last.reason) != (head, reason):
            segment = Segment(
                index, step.start_s, head, reason, step.num_free_blocks_planned, queue.num_running
            )
            queue.segments.append(segment)

    # --- lives ---------------------------------------------------------------------------------

    def _life(self, name: str, does: str) -> Life:
        life = self.lives.get(name)
        if life is None:
            raise HistoryError(f"the step {does} {name!r}, which never arrived")
        return life

    def _running(self, name: str, does: str) -> Life | None:
        """The life of one that runs; None if it has ended.

        Under async scheduling the next step has been planned when the end of a request is known.
        """
        life = self._life(name, does)
        if life.end_s is not None:
            return None
        if not life.is_running:
            raise HistoryError(f"the step {does} {name!r}, which does not run")
        return life

    def _enter(self, life: Life, replica: int) -> None:
        """A replica speaks of a request for the first time: it has been there since it arrived."""
        if life.replica is None:
            life.replica = replica
            wait = life.waits[0]
            wait.first = bisect_left(self.queues[replica].starts_s, wait.start_s)
            wait.stop = max(wait.stop, wait.first)
