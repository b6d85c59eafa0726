"""Recorder of a run, in O(what changed) per step: columns of numbers, one row per request.

A token's time is the end of the step that made it, so nothing is kept per token: while a request decodes it
owns a range of steps of its replica, opened by the chunk that samples and closed when it idles, is preempted
or ends. The number of ranges that continue from one step to the next is how often the time between the two is
an interval between tokens.

With a `Sink` complete rows leave the memory during the run.
"""

import math
from collections.abc import Sequence
from dataclasses import field
from typing import NamedTuple, Protocol

from sundog.actors.core.acceptance import Acceptance
from sundog.actors.core.batch import Admission, Batch, Finish
from sundog.actors.core.records import dataclass
from sundog.actors.core.request import Submit
from sundog.actors.messages import EngineDown, StepOutput
from sundog.sim.record.columns import (
    ABSENT,
    NO_SAMPLE,
    Columns,
    KvUse,
    Limits,
    LiveColumns,
    MovedColumns,
    Refusals,
    StepColumns,
    blocks_of,
)
from sundog.sim.record.sink import Sink
from sundog.sim.trace.programs import Programs

SPILL = 2**15
"""Number of rows, or steps of a replica, in memory from which complete ones are passed to a sink."""


def tokens_at_end(output: StepOutput) -> list[tuple[Finish, int]]:
    """Return each request that ends, with the number of steps of the output that gave it a token, if it
    decoded.

    An aborted request gets none from the last step, nor does one whose token was not delivered.
    """
    num_steps, gone = len(output.end_times_s), output.batch.finished
    sampled = None if output.tokens is None else {name for name, _ in output.tokens}
    rows: list[tuple[Finish, int]] = []
    for finish in output.finished:
        name, reason = finish.request_id, finish.reason
        if name in gone or reason == "refused":
            rows.append((finish, 0))
        elif reason in ("abort", "error") or (sampled is not None and name not in sampled):
            rows.append((finish, max(num_steps - 1, 0)))
        else:
            rows.append((finish, num_steps))
    return rows


class Loss(NamedTuple):
    """Loss of an engine: the requests that ended with it, and those that begin again elsewhere."""

    replica: int
    time_s: float
    num_ended: int
    num_again: int


@dataclass(slots=True)
class HostHits:
    """Tokens loaded from host memory: of prompts, and of requests that ran before."""

    hit_tokens: int = 0
    reloaded_tokens: int = 0


class RunAccount(Protocol):
    """Additional statistics that a Recorder updates during a run."""

    def figures(self, recorder: "Recorder") -> object:
        """Return its figures once the run is over."""
        ...


@dataclass(slots=True)
class Recorder:
    """Recorder of arrivals and every StepOutput, in `columns`, `steps` and `kv_use`.

    `num_blocks` is each replica's KV blocks with the null block, as in Capacity. A request without a call of
    `arrived` (such as a warm-up) is ignored. `front_end_s` is each client's wait before the engine: part of
    the latencies, but of no column of times.
    """

    num_blocks: int
    num_replicas: int = 1
    front_end_s: float = 0.0
    sink: Sink | None = None
    own_blocks: Sequence[int] = ()
    """KV blocks of each replica, if they are not equal."""
    ledger: RunAccount | None = None
    host_hits: HostHits | None = None
    """Hits in host memory; None without such memory."""
    columns: Columns = field(default_factory=Columns)
    refusals: Refusals = field(default_factory=Refusals)
    acceptance: Acceptance = field(default_factory=Acceptance)
    programs: Programs = field(default_factory=Programs)
    losses: list[Loss] = field(default_factory=list)
    """Lost engines, in order."""
    first_arrival_s: float = math.inf
    """Arrival of the very first request, including those whose rows are in the sink."""
    steps: list[StepColumns] = field(init=False)
    kv_use: list[KvUse] = field(init=False)
    _num_blocks_of: list[int] = field(init=False)
    """KV blocks of each replica without the null block."""
    _live: dict[str, LiveColumns] = field(default_factory=dict)
    _spill_at: int = SPILL

    def __post_init__(self) -> None:
        self.steps = [StepColumns() for _ in range(self.num_replicas)]
        self.kv_use = [KvUse() for _ in range(self.num_replicas)]
        self.own_blocks = tuple(self.own_blocks) or (self.num_blocks,) * self.num_replicas
        self._num_blocks_of = [count - 1 for count in self.own_blocks]

    def arrived(
        self, request_id: str, arrival_s: float, num_prompt_tokens: int, tenant: str | None = None
    ) -> None:
        """Begin the row of a submitted request."""
        if request_id in self._live:
            raise ValueError(f"request {request_id} arrived twice")
        if self.sink is not None and len(self.columns) >= self._spill_at:
            self._spill_requests(self.sink)
        if arrival_s < self.first_arrival_s:
            self.first_arrival_s = arrival_s
        self._live[request_id] = LiveColumns(
            self.columns.add(request_id, arrival_s, num_prompt_tokens, tenant)
        )

    def wants(self, request_id: str, limits_s: Limits) -> None:
        """Record the limits of a request that is about to arrive."""
        self.columns.limits_s[request_id] = limits_s

    def refused(self, request_id: str, reason: str) -> None:
        """Record that an arrived request was refused before any engine."""
        self.refusals.add(reason)
        self.columns.reason[self._live.pop(request_id).row] = "refused"
        self.columns.refusals[request_id] = reason

    def observe(self, output: StepOutput) -> None:
        """Record one output; costs O(what its batch changes), plus its steps' end times."""
        batch, ends, replica = output.batch, output.end_times_s, output.replica
        steps = self.steps[replica]
        now, num_ended = steps.num_steps, len(ends)
        last = now + num_ended - 1
        steps.ended(ends, num_ended)
        starting: list[LiveColumns] = []
        if steps.restarting and ends:
            for live in steps.restarting:
                live.first_s = ends[0]
            starting, steps.restarting = steps.restarting, starting
        num_prefill_tokens = 0
        for chunk in batch.chunks:
            num_prefill_tokens += chunk.num_tokens
        steps.num_batched_tokens += (num_prefill_tokens + batch.num_decodes) * num_ended
        if batch.admitted or batch.chunks or batch.preempted or batch.idle or batch.finished:
            self._fold(batch, output, now, starting)
        num_first = num_last = num_intervals = steps.num_open
        if num_ended > 1:
            num_last = num_intervals = num_first + sum(live.start == now for live in starting)
        if batch.drafts:
            add_drafts(output, self.acceptance, self._live, self.columns, steps)
        if output.finished:
            num_last -= self._finish(output, last)
        blocks = NO_SAMPLE
        if num_ended:
            end_s = ends[-1]
            for live in starting:
                if live.start == now:
                    live.is_open = True
                    steps.num_open += 1
            steps.num_steps = last + 1
            begin_s = output.start_s
            steps.busy_s += end_s - (begin_s if begin_s > steps.last_end_s else steps.last_end_s)
            steps.last_end_s = end_s
            blocks = blocks_of(output, self._num_blocks_of[replica])
            self.kv_use[replica].stepped(begin_s, end_s, blocks)
        steps.groups.add(
            output, num_ended, num_prefill_tokens, blocks, num_first, num_intervals, num_last
        )  # by place: names take a microsecond in plain Python
        if self.sink is not None and steps.num_kept >= SPILL:
            self._spill_steps(self.sink, replica)

    def spill(self) -> None:
        """Pass all remaining rows to the sink at the end of the run."""
        if self.sink is not None:
            for replica in range(self.num_replicas):
                self._spill_steps(self.sink, replica)
            self.sink.requests(self.columns, len(self.columns), self.front_end_s)
            self.columns.drop(len(self.columns))
        self.columns.trim()

    def _spill_steps(self, sink: Sink, replica: int) -> None:
        steps = self.steps[replica]
        sink.steps(replica, steps)
        steps.drop()

    def _spill_requests(self, sink: Sink) -> None:
        """Pass the ended requests at the front to the sink. O(unfinished)"""
        count = min((live.row for live in self._live.values()), default=len(self.columns))
        if count:
            sink.requests(self.columns, count, self.front_end_s)
            self.columns.drop(count)
            for live in self._live.values():
                live.row -= count
        self._spill_at = len(self.columns) + SPILL

    def _fold(self, batch: Batch, output: StepOutput, now: int, starting: list[LiveColumns]) -> None:
        self._stop_ranges(batch, now, output.replica)
        live, columns = self._live, self.columns
        for admission in batch.admitted:
            request = live.get(admission.request_id)
            if request is None:
                continue
            row, hit_tokens = request.row, admission.num_computed_tokens
            request.computed_tokens = hit_tokens
            columns.replica[row] = output.replica
            if admission.resumed:
                self._resumes(request, admission, output.start_s)
            else:
                if self.host_hits is not None:
                    self.host_hits.hit_tokens += admission.num_host_tokens
                if not request.is_handed:
                    columns.first_scheduled_s[row] = output.start_s
                    columns.prefix_hit_tokens[row] = hit_tokens
        for chunk in batch.chunks:
            request = live.get(chunk.request_id)
            if request is not None:
                request.computed_tokens += chunk.num_tokens
                if chunk.samples:
                    request.start = now
                    request.first_s = output.end_times_s[0]
                    starting.append(request)
                    if math.isnan(columns.first_token_s[request.row]):
                        columns.first_token_s[request.row] = output.end_times_s[0]
        if batch.idle:
            self._idle(output, now)

    def _stop_ranges(self, batch: Batch, now: int, replica: int) -> None:
        live, steps, columns = self._live, self.steps[replica], self.columns
        for request_id in batch.finished:
            # Only one that was aborted between two steps is still known here, or one that was handed over.
            request = live.get(request_id)
            if request is not None and columns.replica[request.row] == replica:
                self._close(request, steps, now)
        for request_id in batch.preempted:
            request = live.get(request_id)
            if request is not None:
                columns.num_preemptions[request.row] += 1
                self._close(request, steps, now)
                request.lost_tokens, request.computed_tokens = request.computed_tokens, 0

    def _idle(self, output: StepOutput, now: int) -> None:
        steps, where = self.steps[output.replica], self.columns.replica
        for request_id in output.batch.idle:
            request = self._live.get(request_id)
            # One that was handed over may run elsewhere by the time that a step planned ahead is told.
            if request is not None and request.start is not None and where[request.row] == output.replica:
                self._close(request, steps, now)
                # The next range begins with a decode, which computes a token as a chunk does not.
                request.computed_tokens += 1
                request.start = now + len(output.end_times_s)
                steps.restarting.append(request)

    def _close(self, request: LiveColumns, steps: StepColumns, stop: int) -> None:
        start, request.start = request.start, None
        if start is None or stop < start:
            return
        if request.is_open:
            request.is_open = False
            steps.num_open -= 1
        # The first token of a range comes with its chunk; each later one computed one token more.
        request.computed_tokens += stop - start - 1
        if stop > start:
            if not math.isnan(request.last_s):
                steps.gaps_s.append(request.first_s - request.last_s)
            request.last_s = steps.last_end_s
            self.columns.num_output_tokens[request.row] += stop - start

    def _finish(self, output: StepOutput, last_step: int) -> int:
        """Record requests that end with this output; an aborted one gets no token from its last step.

        Returns the number of intervals with the last step that are missing for this reason.
        """
        num_missing, stop = 0, last_step + 1
        first = stop - len(output.end_times_s)
        columns, steps = self.columns, self.steps[output.replica]
        end_s = output.end_times_s[-1] if output.end_times_s else output.start_s
        for finish, num_tokens in tokens_at_end(output):
            request_id, reason = finish.request_id, finish.reason
            request = self._live.pop(request_id, None)
            if request is None:
                continue
            if reason == "handed":
                self._live[request_id] = request
                if finish.moves is None:
                    self._hand_over(request)
                else:
                    self._leaves(request, finish.moves, steps, first + num_tokens, end_s)
                continue
            if reason == "refused":
                columns.refusals[request_id] = finish.error or "no reason given"
                self.refusals.add(columns.refusals[request_id])
                columns.reason[request.row] = reason
                continue
            last = first + num_tokens
            if last < stop and request.start is not None and request.start < last_step:
                num_missing += 1
            self._close(request, steps, last)
            if columns.num_output_tokens[request.row] == 0:
                columns.first_token_s[request.row] = ABSENT
            columns.finish_s[request.row] = end_s
            columns.reason[request.row] = reason
            if reason not in ("abort", "error"):
                self.programs.ends(request_id, end_s)
        return num_missing

    def _hand_over(self, request: LiveColumns) -> None:
        """Let another replica sample the first token again, and do not count the one sampled here.

        This includes a first token that was sampled before the request was preempted.
        """
        request.is_handed, request.start, request.last_s = True, None, ABSENT
        self.columns.first_token_s[request.row] = ABSENT
        if self.columns.num_output_tokens[request.row]:
            self.columns.num_output_tokens[request.row] = 0

    def _leaves(
        self, request: LiveColumns, moves: Submit, steps: StepColumns, stop: int, end_s: float
    ) -> None:
        start = request.start
        self._close(request, steps, stop)
        if start is not None:
            request.stopped_since_s = end_s
            request.last_s = end_s if stop > start else request.last_s
        steps.restarting = [each for each in steps.restarting if each is not request]
        if moves.has_remote_kv:
            request.lost_tokens = 0
        elif request.computed_tokens:
            request.lost_tokens, request.computed_tokens = request.computed_tokens, 0
        if isinstance(self.columns, MovedColumns):
            self.columns.left(request.row, moves.has_remote_kv)

    def _resumes(self, request: LiveColumns, admission: Admission, start_s: float) -> None:
        columns, hit_tokens = self.columns, admission.num_computed_tokens
        columns.recomputed_tokens[request.row] += max(request.lost_tokens - hit_tokens, 0)
        if self.host_hits is not None:
            self.host_hits.reloaded_tokens += admission.num_host_tokens
        if isinstance(columns, MovedColumns) and not math.isnan(request.stopped_since_s):
            columns.stood_still(request.row, start_s - request.stopped_since_s)
            request.stopped_since_s = ABSENT

    def lost(self, down: EngineDown, time_s: float) -> tuple[str, ...]:
        """End requests that had begun on a lost replica, and return them; others begin again."""
        replica, in_batch = down.replica, frozenset(down.in_batch)
        steps, ended, num_again = self.steps[replica], list[str](), 0
        for name in down.request_ids:
            request = self._live.get(name)
            if request is None:
                continue
            if name not in in_batch and math.isnan(self.columns.first_token_s[request.row]):
                request.lost_tokens, request.computed_tokens = 0, 0
                request.start, request.is_handed = None, False
                num_again += 1
            else:
                self._close(request, steps, steps.num_steps)
                self.ended(name, "error", time_s)
                ended.append(name)
        self.losses.append(Loss(replica, time_s, len(ended), num_again))
        return tuple(ended)

    def ended(self, request_id: str, reason: str, time_s: float) -> None:
        """Record the end of a request without an engine."""
        if (request := self._live.pop(request_id, None)) is not None:
            self.columns.finish_s[request.row] = time_s
            self.columns.reason[request.row] = reason


def add_drafts(
    output: StepOutput,
    acceptance: Acceptance,
    live: dict[str, LiveColumns],
    columns: Columns,
    steps: StepColumns,
) -> None:
    """Count accepted drafts. They arrive at the same time as the token after them, at intervals of 0."""
    steps.num_batched_tokens += output.batch.num_draft_tokens
    acceptance.add(output.batch.drafts, output.accepted, output.surplus)
    for name, count in output.accepted:
        request = live.get(name)
        if request is not None and count:
            request.computed_tokens += count
            columns.num_output_tokens[request.row] += count
            steps.gaps_s.extend([0.0] * count)
