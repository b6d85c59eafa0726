"""A model in stages: batches overlap, one alone pays for all stages, many are as fast as the slowest."""

from dataclasses import replace

import pytest

from sundog.actors.config import EngineConfig, SchedulerConfig
from sundog.actors.messages import Capacity
from sundog.sim.cost.composed import Pipeline, scaled
from sundog.sim.cost.overhead import NO_OVERHEAD, HostOverhead
from sundog.sim.cost.work import CostModel, StepWork
from sundog.sim.record.recorder import Recorder
from sundog.sim.replay import replay
from sundog.sim.trace.record import TraceRequest
from tests.core.traces import num_cases
from tests.sim.test_replay import digest, random_config, random_trace

CAPACITY = Capacity(2048, 16)


class Constant(CostModel):
    """Every step takes as long; samples are counted in the head's stage alone."""

    __slots__ = ("num_samples", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds, self.num_samples = seconds, 0

    def step_s(self, work: StepWork) -> float:
        self.num_samples += work.num_samples
        return self.seconds if work.num_tokens else 0.0


def pipeline(*seconds: float, send_s: float = 0.0, overhead: HostOverhead = NO_OVERHEAD) -> Pipeline:
    return Pipeline(tuple(map(Constant, seconds)), overhead, send_s, 0.0)


def config(num_stages: int, num_seqs: int = 64, **more: object) -> EngineConfig:
    limits = SchedulerConfig(
        max_num_seqs=num_seqs, max_num_batched_tokens=64, pipeline_parallel_size=num_stages, **more
    )  # type: ignore[arg-type]
    return EngineConfig(scheduler=limits, decode_runs=True, debug=True)


def requests(count: int, num_output_tokens: int) -> list[TraceRequest]:
    """All at once, each as long as the token budget, so that no two begin in one step."""
    return [TraceRequest(f"r{number}", 0.0, 64, num_output_tokens) for number in range(count)]


def last_token_s(recorder: Recorder) -> float:
    return max(recorder.columns.finish_s)


@pytest.mark.parametrize("is_async", [False, True])
def test_one_request_pays_for_all_stages_with_each_token(is_async: bool) -> None:
    """A bubble in every stage but one, at any time: the sum, and the way between them."""
    cost = pipeline(0.010, 0.020, 0.030, send_s=0.001)
    recorder = replay(requests(1, 50), config(3, async_scheduling=is_async), cost, CAPACITY)
    assert last_token_s(recorder) == pytest.approx(50 * 0.062, rel=1e-6)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("seconds", [(0.01, 0.01, 0.01), (0.01, 0.03, 0.02)])
def test_as_many_requests_as_stages_go_at_the_pace_of_the_slowest(
    seconds: tuple[float, float, float], is_async: bool
) -> None:
    """Where a round of all takes no longer than the stages together, no stage waits but for the slowest."""
    recorder = replay(requests(3, 200), config(3, async_scheduling=is_async), pipeline(*seconds), CAPACITY)
    period = max(3 * max(seconds), sum(seconds))
    assert last_token_s(recorder) == pytest.approx(200 * period, rel=0.02)
    assert sum(recorder.columns.num_output_tokens) == 600


def test_what_runs_together_stays_together() -> None:
    """Requests that begin in one step are one batch for ever, and leave bubbles, as in vLLM."""
    together = [TraceRequest(f"r{number}", 0.0, 16, 100) for number in range(3)]
    recorder = replay(together, config(3), pipeline(0.01, 0.01, 0.01), CAPACITY)
    assert last_token_s(recorder) == pytest.approx(100 * 0.03, rel=1e-6)


def test_a_request_that_arrives_meanwhile_waits_for_a_result() -> None:
    """The plan that fills the stages is done: the next is due when a batch comes back."""
    rows = [TraceRequest("a", 0.0, 16, 10), TraceRequest("b", 0.001, 16, 10)]
    recorder = replay(rows, config(2), pipeline(0.01, 0.01), CAPACITY)
    assert recorder.columns.first_scheduled_s[1] == pytest.approx(0.02)


@pytest.mark.parametrize("overlaps", [False, True])
def test_the_host_plans_one_batch_at_a_time(overlaps: bool) -> None:
    """Where it plans ahead it sets a least pace; where it does not, it also delays each batch."""
    host = HostOverhead(step_s=0.02, overlaps=overlaps)
    stages = pipeline(0.01, 0.01, overhead=host)
    alone = last_token_s(replay(requests(1, 50), config(2, async_scheduling=overlaps), stages, CAPACITY))
    two = last_token_s(replay(requests(2, 50), config(2, async_scheduling=overlaps), stages, CAPACITY))
    assert alone == pytest.approx(50 * (0.02 if overlaps else 0.04), rel=0.02)
    assert two == pytest.approx(50 * 0.04, rel=0.04)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("seed", range(num_cases(12)))
def test_tokens_are_conserved_and_runs_are_equal(seed: int) -> None:
    """Tiny pools, preemptions, both modes: every request gets its tokens, blocks are free in the end (`debug`
    checks it whenever an engine idles), and the same input gives the same bytes."""
    own = random_config(seed)
    limits = replace(own.scheduler, pipeline_parallel_size=2 + seed % 3, async_scheduling=bool(seed % 2))
    own, rows = replace(own, scheduler=limits, debug=True), random_trace(seed)
    capacity = Capacity(own.scheduler.num_gpu_blocks or 40, own.scheduler.block_size)
    cost = pipeline(*[0.004 + 0.001 * stage for stage in range(2 + seed % 3)], send_s=0.0001)
    runs = [replay(rows, own, cost, capacity) for _ in range(2)]
    assert digest(runs[0]) == digest(runs[1])
    lengths = [min(row.num_output_tokens, 280 - row.num_prompt_tokens) for row in rows]
    assert list(runs[0].columns.num_output_tokens) == lengths


def test_only_the_last_stage_has_the_head() -> None:
    """Samples are priced once."""
    cost = pipeline(0.01, 0.01)
    replay(requests(2, 10), config(2), cost, CAPACITY)
    counts = [stage.num_samples for stage in cost.stages if isinstance(stage, Constant)]
    assert counts == [0, 20]


def test_a_step_alone_is_priced_as_the_stages_in_turn() -> None:
    """And a scaled pipeline is still one."""
    cost, work = pipeline(0.01, 0.02, send_s=0.005), StepWork(4, 100, (), 4)
    assert cost.step_s(work) == pytest.approx(0.035)
    assert cost.run_s(work, 3).tolist() == [cost.step_s(work)] * 3
    assert scaled(cost, 2).step_s(work) == pytest.approx(0.07) and isinstance(scaled(cost, 2), Pipeline)
    assert cost.step_s(StepWork(0, 0)) == 0
