"""Metrics listener: totals for /metrics, and log lines of requests and throughput.

It receives the same messages as a simulation's Recorder, and keeps totals instead of rows: its memory follows
the unfinished requests. Cost: a dictionary lookup a token, and an observation for each different time between
tokens of a step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sundog.actors.front.active_request import MOST_LOSSES
from sundog.actors.kernel.actor import Actor
from sundog.actors.kernel.clock import Event
from sundog.actors.messages import (
    EngineDown,
    EngineUp,
    Finish,
    Heard,
    PolicyFailed,
    Routed,
    StepOutput,
    Submit,
    Unserved,
)
from sundog.actors.metrics.logs import Throughput
from sundog.actors.metrics.measured import Measured, Recent
from sundog.actors.metrics.totals import EngineTotals

THROUGHPUT_S = 10.0

OnEnd = Callable[[Measured, str, float], None]
"""Function called for each finished request, with its reason and time."""


@dataclass(frozen=True, slots=True)
class SayThroughput:
    """Message of Metrics to itself, sent every ten seconds: log the throughput."""


class Metrics(Actor[Heard | SayThroughput]):
    """Totals of all engines, and the unfinished requests.

    With `says_throughput` it logs a line every ten seconds; `on_end` is called for each finished request.
    """

    def __init__(
        self,
        num_replicas: int,
        max_model_len: int,
        *,
        prefix_caching: bool = True,
        host_memory: bool = False,
        says_throughput: bool = False,
        on_end: Sequence[OnEnd] = (),
    ) -> None:
        super().__init__("metrics")
        self.engines = [EngineTotals(max_model_len) for _ in range(num_replicas)]
        self.requests: dict[str, Measured] = {}
        self.recent = Recent()
        self._replica_of: dict[str, int] = {}
        """Replica of each request that the Router received first."""
        self._prefix_caching, self._host_memory = prefix_caching, host_memory
        self._on_end = on_end
        self._says_throughput = says_throughput
        self._throughput = Throughput(self.engines, 0.0)

    async def opened(self) -> None:
        if self._says_throughput:
            self._throughput = Throughput(self.engines, self.clock.now_s())
            self._say_later()

    def _say_later(self) -> None:
        self.schedule(self.clock.now_s() + THROUGHPUT_S, Event.TIMEOUT, SayThroughput())

    def handle(self, message: Heard | SayThroughput) -> None:
        match message:
            case StepOutput():
                self._step(message)
            case Submit():
                request = self.requests[message.request_id] = Measured(message)
                request.replica = self._replica_of.pop(message.request_id, None)
            case EngineUp():
                engine, capacity = self.engines[message.replica], message.engine.capacity
                engine.is_up, engine.block_size = True, capacity.block_size
                engine.why_down = engine.next_start_s = None
                engine.num_blocks = engine.num_free_blocks = capacity.num_blocks - 1
            case EngineDown():
                self._lost(message)
            case Unserved():
                self._unserved(message)
            case PolicyFailed():
                self.engines[message.replica].has_other_policy = True
            case Routed():
                self._routed(message)
            case SayThroughput():
                self._throughput.log(self.clock.now_s())
                self._say_later()
            case _:
                self.unknown(message)

    def _routed(self, routed: Routed) -> None:
        for name in routed.request_ids:
            if (request := self.requests.get(name)) is None:
                self._replica_of[name] = routed.replica
            else:
                request.replica = routed.replica

    def _step(self, output: StepOutput) -> None:
        engine, batch, end_s = self.engines[output.replica], output.batch, output.end_times_s[-1]
        self._follow(engine, output)
        if batch.num_tokens:
            engine.num_steps += len(output.end_times_s)
            engine.busy_s += end_s - output.start_s
            engine.step_tokens.observe(batch.num_tokens, len(output.end_times_s))
        if output.accepted:
            engine.drafts.add(batch.drafts, output.accepted, output.surplus)
        self._tokens(engine, output, end_s)
        for finish in output.finished:
            self._end(engine, finish, end_s)
        for name, rank in output.ranks:
            if (request := self.requests.get(name)) is not None:
                request.rank = rank
        engine.num_running, engine.num_waiting = output.num_running, output.num_waiting
        engine.num_free_blocks = output.num_free_blocks
        engine.blocked = output.blocked if output.num_waiting else None

    def _follow(self, engine: EngineTotals, output: StepOutput) -> None:
        """Apply a batch (`core/batch.py`): running requests, progress of prompts, and blocks."""
        requests, batch = self.requests, output.batch
        for name in batch.preempted:
            engine.num_preemptions += 1
            if (request := requests.get(name)) is not None:
                request.num_preemptions += 1
                request.block_ids.clear()
        for admission in batch.admitted:
            if (request := requests.get(admission.request_id)) is None:
                continue
            request.replica = output.replica
            request.num_computed_tokens = admission.num_computed_tokens
            request.block_ids = list(admission.block_ids)
            if request.scheduled_s is None:
                request.scheduled_s = output.start_s
                request.num_cached_tokens = admission.num_computed_tokens
                request.num_host_tokens = admission.num_host_tokens
                num_local = admission.num_computed_tokens - admission.num_host_tokens
                if self._prefix_caching:
                    engine.num_prefix_queries += request.num_prompt_tokens
                    engine.num_prefix_hits += num_local
                if self._host_memory:
                    engine.num_host_queries += request.num_prompt_tokens - num_local
                    engine.num_host_hits += admission.num_host_tokens
        for name, blocks in batch.new_blocks:
            if (request := requests.get(name)) is not None:
                request.block_ids += blocks
        for chunk in batch.chunks:
            if (request := requests.get(chunk.request_id)) is not None:
                request.num_computed_tokens += chunk.num_tokens

    def _tokens(self, engine: EngineTotals, output: StepOutput, end_s: float) -> None:
        """Count the new tokens of a step, all at the step's end; a handed-over prompt has none."""
        gaps: dict[float, int] = {}
        handed = {f.request_id for f in output.finished if f.reason == "handed" and f.moves is None}
        for name, _ in output.tokens or ():
            if name in handed:
                continue
            engine.num_generation_tokens += 1
            request = self.requests.get(name)
            if request is None:
                continue
            request.num_tokens += 1
            request.num_computed_tokens = request.num_known_tokens - 1
            last_s, request.last_s = request.last_s, end_s
            if last_s is None:
                request.first_s = end_s
                engine.begin(request)
                self.recent.ttft_s.append(end_s - request.arrival_s)
            elif last_s != end_s:
                gaps[end_s - last_s] = gaps.get(end_s - last_s, 0) + 1
        for gap_s, times in gaps.items():
            engine.inter_token_s.observe(gap_s, times)
            self.recent.gaps.append((gap_s, times))

    def _end(self, engine: EngineTotals, finish: Finish, time_s: float) -> None:
        if finish.reason == "handed":
            if (request := self.requests.get(finish.request_id)) is not None:
                request.block_ids.clear()
            return
        request = self.requests.pop(finish.request_id, None)
        if request is not None:
            engine.end(request, finish.reason, time_s)
            request.block_ids.clear()
            self.recent.ended.append((request, finish.reason, time_s))
            for told in self._on_end:
                told(request, finish.reason, time_s)

    def _lost(self, down: EngineDown) -> None:
        """End requests that had begun or were lost too often; the others are submitted to another engine."""
        in_batch = frozenset(down.in_batch)
        engine = self.engines[down.replica]
        wait_s = down.retry_after_s
        engine.lost(down.reason, None if wait_s is None else self.clock.now_s() + wait_s)
        for name in down.request_ids:
            request = self.requests.get(name)
            if request is None:
                continue
            request.begin_anew()
            has_begun = name in in_batch or request.first_s is not None
            if has_begun or request.num_losses >= MOST_LOSSES:
                self._end(engine, Finish(name, "error"), self.clock.now_s())

    def _unserved(self, unserved: Unserved) -> None:
        """End requests that no engine serves; each counts for its last replica, or for replica 0."""
        for name in unserved.request_ids:
            self._replica_of.pop(name, None)
            if (request := self.requests.get(name)) is not None:
                engine = self.engines[request.replica or 0]
                self._end(engine, Finish(name, unserved.reason), self.clock.now_s())
