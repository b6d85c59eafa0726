"""Data-parallel ranks that share experts: steps begin and end together, and see the tokens of all."""

from dataclasses import replace

import pytest

from sundog.actors.config import EngineConfig, SchedulerConfig
from sundog.actors.core.routers import RoundRobin
from sundog.actors.messages import Capacity
from sundog.sim.cost.composed import InStep
from sundog.sim.cost.overhead import NO_OVERHEAD
from sundog.sim.cost.work import CostModel, StepWork
from sundog.sim.hardware.gpu import load_gpu
from sundog.sim.hardware.model import load_model
from sundog.sim.replay import replay
from sundog.sim.target import Target
from sundog.sim.trace.record import TraceRequest
from tests.sim.test_replay import digest, random_config, random_trace

CAPACITY = Capacity(2048, 16)


class Told(CostModel):
    """A millisecond for each token of the rank, a tenth for each token of all; keeps what it was asked."""

    __slots__ = ("asked",)

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def step_s(self, work: StepWork) -> float:
        self.asked.append((work.num_tokens, work.num_routed_tokens))
        return 0.001 * work.num_tokens + 0.0001 * work.num_routed_tokens


def config(num_ranks: int, **more: bool) -> EngineConfig:
    limits = SchedulerConfig(max_num_batched_tokens=512, **more)  # type: ignore[arg-type]
    return EngineConfig(
        scheduler=limits, replicas=num_ranks, router=RoundRobin(), decode_runs=True, debug=True
    )


@pytest.mark.parametrize("is_async", [False, True])
def test_ranks_end_their_steps_at_the_same_instants(is_async: bool) -> None:
    """Whatever their work: every instant at which one rank's step ends is a step of the group."""
    rows = [TraceRequest(f"r{number}", 0.0, 10 + 30 * number, 40) for number in range(4)]
    recorder = replay(rows, config(4, async_scheduling=is_async), InStep(Told(), 4), CAPACITY)
    ends = [list(steps.end_s) for steps in recorder.steps]
    assert all(len(own) >= 40 and own[:40] == ends[0][:40] for own in ends)


def test_a_step_takes_what_the_slowest_rank_takes_and_experts_see_all_tokens() -> None:
    """Prompts of 100 and 300 tokens on two of three ranks: 401 of all, the idle one's included."""
    told = Told()
    rows = [TraceRequest("a", 0.0, 100, 1), TraceRequest("b", 0.0, 300, 1)]
    recorder = replay(rows, config(3), InStep(told, 3), CAPACITY)
    assert told.asked[:2] == [(100, 401), (300, 401)]
    assert list(recorder.columns.first_token_s) == pytest.approx([0.3401] * 2)


def test_a_request_at_an_idle_rank_waits_for_the_step_under_way() -> None:
    """It begins with the next one of the group."""
    rows = [TraceRequest("a", 0.0, 500, 5), TraceRequest("b", 0.1, 10, 1)]
    recorder = replay(rows, config(2), InStep(Told(), 2), CAPACITY)
    first_s = 0.5 + 0.0501
    assert recorder.columns.first_token_s[0] == pytest.approx(first_s)
    assert recorder.columns.first_token_s[1] == pytest.approx(first_s + 0.01 + 0.0011)


def test_groups_of_other_replicas_do_not_wait() -> None:
    """Four engines, two to a group."""
    rows = [
        TraceRequest(name, 0.0, tokens, 1) for name, tokens in zip("abcd", (500, 10, 20, 10), strict=True)
    ]
    recorder = replay(rows, config(4), InStep(Told(), 2), CAPACITY)
    times = list(recorder.columns.first_token_s)
    assert times[0] == times[1] == pytest.approx(0.5 + 0.051)
    assert times[2] == times[3] == pytest.approx(0.02 + 0.003)


@pytest.mark.long(keep=4, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.parametrize("seed", range(16))
def test_tokens_are_conserved_and_runs_are_equal(seed: int) -> None:
    """Tiny pools, preemptions, both modes; `debug` checks queues and pool whenever an engine idles."""
    own = random_config(seed)
    limits = replace(own.scheduler, async_scheduling=bool(seed % 2))
    own, rows = replace(own, scheduler=limits, replicas=4, debug=True), random_trace(seed)
    runs = [replay(rows, own, InStep(Told(), 2), Capacity(40, 16)) for _ in range(2)]
    assert digest(runs[0]) == digest(runs[1])
    lengths = [min(row.num_output_tokens, 280 - row.num_prompt_tokens) for row in rows]
    assert list(runs[0].columns.num_output_tokens) == lengths


def deepseek(num_ranks: int, size: int = 1) -> Target:
    return Target(
        load_model("deepseek-v3"), load_gpu("h200"), size, expert_parallel=True, data_parallel_size=num_ranks
    )


def test_experts_are_shared_and_all_else_is_each_ranks_own() -> None:
    """Eight ranks hold an eighth of the experts each, and all else whole."""
    model = load_model("deepseek-v3")
    alone, shared = model.weight_bytes(), model.weight_bytes(groups=8)
    layers = [(layer, count) for layer, count in model.layers if layer.mlp.num_experts > 1]
    experts = sum(n * x.mlp.num_experts * x.mlp.expert_weights(model.hidden_size) for x, n in layers)
    size = model.bytes_per_weight(layers[0][0], "experts", 2)
    assert alone - shared == pytest.approx(experts * size * 7 / 8, rel=1e-6)
    blocks = deepseek(8).capacity(16, 8192, 1024).num_blocks
    assert blocks > 10_000


def test_more_tokens_of_others_take_longer_and_one_rank_is_as_before() -> None:
    """The roofline's experts and exchange follow the tokens of all ranks."""
    cost, work = deepseek(8).cost(NO_OVERHEAD), StepWork(4, 4000, (), 4)
    in_step = InStep(cost, 8)
    alone, beside = in_step.step_among_s([work]), in_step.step_among_s([work, StepWork(64, 64000, (), 64)])
    assert alone < beside
    assert in_step.run_s(StepWork(4, 4000, (), 4), 3).tolist()[0] == alone
    one = deepseek(1, 8).cost(NO_OVERHEAD)
    assert one.step_s(StepWork(4, 4000, (), 4)) == one.step_s(StepWork(4, 4000, (), 4, num_routed_tokens=4))
