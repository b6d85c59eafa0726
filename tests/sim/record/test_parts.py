"""Laws of runs that go on for requests that come in their middle: what is told of each step is the same."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from actors.actor import Actor, Reply
from actors.config import EngineConfig
from actors.core.batch import Batch, StepResult
from actors.core.config import SchedulerConfig
from actors.messages import Capacity, Heard, StepOutput
from sim.backend import CostBackend, Pace
from sim.oracle import Oracle
from sim.record.parts import parts
from sim.record.recorder import Recorder
from sim.replay import counting_tokens, replay, replay_on
from sim.trace.record import TraceRequest
from tests.sim.test_replay import COST, digest, random_config, random_trace

CAPACITY = Capacity(400, 16)


class Listener(Actor[Heard]):
    """Keeps outputs as they were told."""

    def __init__(self) -> None:
        super().__init__("listener")
        self.outputs: list[StepOutput] = []

    def handle(self, message: Heard) -> None:
        if isinstance(message, StepOutput):
            self.outputs.append(message)


class EndsAtBoundaries:
    """A CostBackend that does runs, none of which goes on."""

    def __init__(self, backend: CostBackend) -> None:
        self._backend = backend

    async def load(self) -> Capacity:
        return await self._backend.load()

    def execute(self, batch: Batch) -> Reply[StepResult]:
        return self._backend.execute(batch)

    def interrupt(self) -> None:
        self._backend.interrupt()

    async def close(self) -> None:
        await self._backend.close()


def played(
    trace: Sequence[TraceRequest], config: EngineConfig, *, goes_on: bool = True
) -> tuple[Recorder, list[StepOutput]]:
    future = {row.request_id: row.num_output_tokens for row in trace}
    backends = [
        CostBackend(Pace(COST, f"runner-{replica}"), Oracle(future), CAPACITY)
        for replica in range(config.replicas)
    ]
    heard = Listener()
    recorder = replay_on(
        trace,
        config,
        backends if goes_on else [EndsAtBoundaries(backend) for backend in backends],
        CAPACITY,
        generate_for=counting_tokens(16),
        listeners=[heard],
    )
    return recorder, heard.outputs


def rows(outputs: Sequence[StepOutput]) -> list[tuple[object, ...]]:
    """What a journal says of each part, by replica and time."""
    found = [part for output in outputs for part in parts(output)]
    found.sort(key=lambda part: (part.replica, part.start_s, part.step))
    return [
        (
            part.replica,
            part.step,
            part.start_s,
            tuple(part.end_times_s),
            part.batch.num_decodes,
            part.batch.chunks,
            part.finished,
            part.num_free_blocks,
            part.num_waiting,
            part.blocked,
        )
        for part in found
    ]


@pytest.mark.parametrize("seed", range(6))
def test_a_run_that_goes_on_is_told_as_the_run_and_the_step_planned_ahead(seed: int) -> None:
    """Fewer messages, and in parts the same ones: steps, times, blocks, ends, and who waited."""
    config = replace(random_config(seed), decode_runs=True)
    config = replace(config, scheduler=replace(config.scheduler, async_scheduling=True))
    trace = list(random_trace(seed))
    recorder, outputs = played(trace, config)
    ended, all_outputs = played(trace, config, goes_on=False)
    assert digest(recorder) == digest(ended)
    assert rows(outputs) == rows(all_outputs)
    assert len(outputs) < len(all_outputs)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_run_does_not_end_for_a_request_that_waits_behind_others(is_async: bool) -> None:
    """Two run, and twenty come one by one: a run ends with a request, and each step tells who waited."""
    trace = [TraceRequest(f"r{number}", 0.05 * number, 32, 200) for number in range(22)]
    limits = SchedulerConfig(max_num_seqs=2, async_scheduling=is_async)
    config = EngineConfig(scheduler=limits, decode_runs=True)
    recorder, outputs = played(trace, config)
    before_an_end = [output for output in outputs if output.start_s < 1.0 and len(output.end_times_s) > 1]
    assert any(len(output.waited) > 5 for output in before_an_end)
    stepwise = replay(trace, replace(config, decode_runs=False), COST, CAPACITY)
    assert digest(recorder) == digest(stepwise)
    told = [[count for count, *_ in _waiting(found)] for found in (recorder, stepwise)]
    assert told[0] == told[1] and max(told[0]) >= 19


def _waiting(recorder: Recorder) -> list[tuple[int, float]]:
    """How many waited at the end of each step, as `steps.parquet` says it."""
    steps = recorder.steps[0]
    groups, found = steps.groups, []
    columns = (groups.column(name) for name in ("num_steps", "num_waiting", "num_waiting_at_end"))
    for count, during, at_end in zip(*columns, strict=True):
        found += [int(during)] * (int(count) - 1) + [int(at_end)]
    return list(zip(found, steps.end_s, strict=True))
