"""KV blocks in use, as recorded, equal what requests hold from allocation to release."""

import random
from dataclasses import replace

import pytest

from sundog.actors.kernel.actor import Actor, Handled
from sundog.actors.messages import Heard, StepOutput
from sundog.builds.simulated import deploy
from sundog.options.engine import EngineOptions
from sundog.options.simulation import TargetOptions
from sundog.sim.figures.metrics import Summary, summarize
from sundog.sim.replay import replay
from sundog.sim.trace.record import TraceRequest

NUM_BLOCKS = 1000


class Held(Actor[Heard]):
    """Every step's time, blocks and what it released, and so the true integral of single steps."""

    def __init__(self) -> None:
        super().__init__("held")
        self.block_seconds = self.span_s = 0.0
        self.most = self._after = 0
        self._last_s: float | None = None

    def handle(self, message: Heard) -> Handled:
        if not isinstance(message, StepOutput) or not message.end_times_s:
            return None
        assert message.num_free_blocks_held is not None
        held, end_s = NUM_BLOCKS - 1 - message.num_free_blocks_held, message.end_times_s[-1]
        if self._last_s is not None:
            self.block_seconds += self._after * (message.start_s - self._last_s)
            self.span_s += message.start_s - self._last_s
        self.block_seconds += held * (end_s - message.start_s)
        self.span_s += end_s - message.start_s
        self.most, self._after, self._last_s = max(self.most, held), held - message.num_freed_blocks, end_s
        return None


def ran(lengths: list[tuple[float, int, int]], *, plans_ahead: bool, runs: bool) -> tuple[Summary, Held]:
    """Requests of (arrival in seconds, prompt, answer) on an A100 with few blocks."""
    engine = EngineOptions(num_gpu_blocks=NUM_BLOCKS, max_model_len=4096, async_scheduling=plans_ahead)
    simulated = deploy(engine, TargetOptions(model="llama-2-7b", gpu="a100"))
    trace = [TraceRequest(f"r{i}", *row) for i, row in enumerate(lengths)]
    held, config = Held(), replace(simulated.config, decode_runs=runs)
    recorder = replay(trace, config, simulated.cost, simulated.capacity, listeners=[held])
    return summarize(recorder), held


def drawn(count: int, gap_s: float) -> list[tuple[float, int, int]]:
    rng = random.Random(count)
    return [(i * gap_s, rng.randint(50, 1000), rng.randint(20, 300)) for i in range(count)]


@pytest.mark.parametrize("plans_ahead", [False, True])
def test_one_request_is_seen_with_all_its_blocks(plans_ahead: bool) -> None:
    """512 tokens of prompt are 32 blocks, with 199 computed tokens of the answer 45: not those it leaves."""
    summary, _ = ran([(0.0, 512, 200)], plans_ahead=plans_ahead, runs=True)
    assert summary.kv_use_max == pytest.approx(45 / (NUM_BLOCKS - 1))
    assert summary.kv_use_mean == pytest.approx((32 + 45) / 2 / (NUM_BLOCKS - 1), rel=0.02)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("plans_ahead", [False, True])
@pytest.mark.parametrize(("count", "gap_s"), [(8, 0.7), (20, 4.0), (200, 0.05)])
def test_the_use_is_that_of_every_step_and_runs_change_no_bit(
    plans_ahead: bool, count: int, gap_s: float
) -> None:
    """Few requests, long pauses, and so many that requests are preempted."""
    lengths = drawn(count, gap_s)
    grouped, _ = ran(lengths, plans_ahead=plans_ahead, runs=True)
    single, held = ran(lengths, plans_ahead=plans_ahead, runs=False)
    assert grouped.kv_use_mean == single.kv_use_mean and grouped.kv_use_max == single.kv_use_max
    assert single.kv_use_max == held.most / (NUM_BLOCKS - 1)
    true = held.block_seconds / held.span_s / (NUM_BLOCKS - 1)
    assert single.kv_use_mean == pytest.approx(true, rel=0.01)
    assert (single.num_preemptions > 0) == (count == 200)
