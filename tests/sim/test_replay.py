"""Laws of replaying a trace through the composed graph."""

import gc
import hashlib
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import trio

from sundog.actors.config import EngineConfig, SchedulerConfig
from sundog.actors.core.blocks.kv_cache import KVCache
from sundog.actors.core.request import Request
from sundog.actors.core.routers import RoundRobin
from sundog.actors.core.routers.rules import LeastRequests
from sundog.actors.graph import open_graph
from sundog.actors.kernel.actor import Actor, Ref
from sundog.actors.kernel.clock import Event
from sundog.actors.messages import Cancel, Capacity
from sundog.actors.policy_file import find_policy
from sundog.sim.backend import CostBackend, Pace
from sundog.sim.client import Client, Recording
from sundog.sim.clock import run_virtual
from sundog.sim.cost.overhead import HostOverhead, WithOverhead
from sundog.sim.cost.roofline import Roofline
from sundog.sim.figures.metrics import summarize
from sundog.sim.hardware.gpu import load_gpu
from sundog.sim.hardware.model import load_model
from sundog.sim.interrupt import Interrupted
from sundog.sim.oracle import Oracle
from sundog.sim.record.recorder import Recorder
from sundog.sim.replay import counting_tokens, replay
from sundog.sim.trace.record import TraceRequest
from tests.core.traces import num_cases

COST = WithOverhead(Roofline(load_model("qwen3-0.6b"), load_gpu("l40s")), HostOverhead(step_s=0.004))


def random_trace(seed: int, num_requests: int = 60) -> list[TraceRequest]:
    """Requests that come faster than a tiny pool can serve them; some share their prefixes."""
    rng = random.Random(seed)
    now_s, rows = 0.0, []
    for number in range(num_requests):
        now_s += rng.expovariate(60)
        prompt = rng.randint(1, 180)
        family = rng.randint(0, 3)
        hash_ids = tuple(family * 1000 + i for i in range(-(-prompt // 16)))
        rows.append(
            TraceRequest(
                f"r{number}",
                now_s,
                prompt,
                rng.randint(1, 90),
                hash_ids if family else None,
                16 if family else 0,
                rng.randint(0, 2),
            )
        )
    return rows


def random_config(seed: int) -> EngineConfig:
    rng = random.Random(seed)
    limits = SchedulerConfig(
        max_num_seqs=rng.choice([4, 12, 40]),
        max_num_batched_tokens=rng.choice([48, 256, 2048]),
        max_model_len=280,
        enable_prefix_caching=rng.random() < 0.7,
        long_prefill_token_threshold=rng.choice([0, 0, 40]),
        watermark=rng.choice([0.0, 0.05]),
        async_scheduling=rng.random() < 0.2,
    )
    return EngineConfig(
        scheduler=limits,
        policy=find_policy(rng.choice(["fcfs", "priority"])),
        replicas=rng.choice([1, 1, 3]),
        router=rng.choice([RoundRobin(), LeastRequests()]),
    )


def digest(recorder: Recorder) -> str:
    """Everything that a run leaves behind."""
    columns = recorder.columns
    parts = [summarize(recorder).to_json().encode()]
    for column in (
        "arrival_s",
        "first_scheduled_s",
        "first_token_s",
        "finish_s",
        "num_output_tokens",
        "num_preemptions",
        "prefix_hit_tokens",
    ):
        parts.append(getattr(columns, column).tobytes())
    parts += [steps.end_s.tobytes() for steps in recorder.steps]
    return hashlib.sha256(b"".join(parts)).hexdigest()


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("seed", range(num_cases(12)))
def test_decode_runs_and_lockstep_change_no_byte_of_a_run(seed: int, is_async: bool) -> None:
    """One event for many steps, step by step, and touching everyone: the same times and counts."""
    trace, config = random_trace(seed), random_config(seed)
    limits = replace(config.scheduler, async_scheduling=is_async)
    config = replace(config, scheduler=limits)
    capacity = Capacity(random.Random(seed).choice([20, 40, 120]), 16)
    runs = replay(trace, replace(config, decode_runs=True), COST, capacity)
    steps = replay(trace, config, COST, capacity)
    plain = replay(trace, replace(config, lockstep=False), COST, capacity)
    assert digest(runs) == digest(steps) == digest(plain)


def test_a_replay_leaves_the_search_for_cycles_as_it_was() -> None:
    """While it runs, what was there before is left out of the search; afterwards it is looked at again."""
    before, seen = gc.get_threshold(), list[int]()

    def trace() -> Iterator[TraceRequest]:
        for request in random_trace(0):
            if not seen:  # counting takes as long as the objects are many
                seen.append(gc.get_freeze_count())
            yield request

    replay(trace(), random_config(0), COST, Capacity(120, 16))
    assert seen[0] > 0 == gc.get_freeze_count() and gc.get_threshold() == before


class Quitter(Actor):
    """Cancels requests at instants of its own, some before they come or after they have ended."""

    def __init__(self, llm: Ref, seed: int) -> None:
        super().__init__("quitter")
        rng = random.Random(seed)
        self._llm = llm
        self._cancels = [(rng.uniform(0, 4), Cancel(f"r{rng.randrange(60)}")) for _ in range(40)]

    @property
    def idle(self) -> bool:
        return not self._cancels

    async def opened(self) -> None:
        for time_s, cancel in self._cancels:
            self.schedule(time_s, Event.ARRIVAL, cancel)

    def handle(self, message: Any) -> None:
        self._cancels.pop()
        self._llm.tell(message)


def played_with_cancels(seed: int, config: EngineConfig, capacity: Capacity) -> Recorder:
    """The random trace, and somebody who cancels."""
    trace = random_trace(seed)
    lengths = {row.request_id: row.num_output_tokens for row in trace}
    backends = [
        CostBackend(Pace(COST, f"runner-{replica}"), Oracle(lengths), capacity)
        for replica in range(config.replicas)
    ]
    recorder = Recorder(capacity.num_blocks, config.replicas)

    async def play() -> None:
        async with (
            open_graph(config, backends, listeners=[Recording(recorder)]) as llm,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(Quitter(llm, seed).live)
            nursery.start_soon(Client(trace, llm, counting_tokens(16), recorder).live)

    run_virtual(play)
    return recorder


@pytest.mark.long(keep=8, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("seed", range(16))
def test_decode_runs_change_no_byte_where_requests_are_cancelled(seed: int, is_async: bool) -> None:
    """An abort ends a run at the step in which it comes, and is seen where it would have been."""
    config = random_config(seed)
    config = replace(config, scheduler=replace(config.scheduler, async_scheduling=is_async))
    capacity = Capacity(random.Random(seed).choice([20, 40, 120]), 16)
    runs = played_with_cancels(seed, replace(config, decode_runs=True), capacity)
    steps = played_with_cancels(seed, config, capacity)
    assert digest(runs) == digest(steps)
    assert runs.columns.reason == steps.columns.reason and "abort" in runs.columns.reason


def test_under_async_scheduling_most_steps_are_in_runs() -> None:
    """Otherwise the law above would say nothing of it."""
    limits = replace(random_config(0).scheduler, async_scheduling=True, max_num_seqs=40)
    config = replace(random_config(0), scheduler=limits, decode_runs=True, replicas=1)
    trace = [row._replace(arrival_s=4 * row.arrival_s) for row in random_trace(0)]
    steps = replay(trace, config, COST, Capacity(120, 16)).steps[0]
    assert len(steps.groups) < 0.6 * steps.num_steps


def test_the_same_input_gives_the_same_bytes_however_trio_shuffles() -> None:
    """Five runs of three replicas under preemption."""
    config = replace(random_config(1), replicas=3, router=LeastRequests(), decode_runs=True)
    runs = {digest(replay(random_trace(5), config, COST, Capacity(24, 16))) for _ in range(5)}
    assert len(runs) == 1


def test_every_request_gets_exactly_the_tokens_of_its_trace() -> None:
    """Preempted or not, no token is lost, and none is invented."""
    trace = random_trace(7)
    config = replace(random_config(3), decode_runs=True)
    recorder = replay(trace, config, COST, Capacity(20, 16))
    columns = recorder.columns
    assert sum(columns.num_preemptions) > 0, "the pool was too large to prove anything"
    wanted = {row.request_id: row.num_output_tokens for row in trace}
    assert dict(zip(columns.request_id, columns.num_output_tokens, strict=True)) == wanted


def test_a_prompt_beyond_the_context_is_refused_and_counted() -> None:
    """Nothing is lost: who cannot be served is refused by name, and the others go on."""
    rows = [TraceRequest("long", 0.0, 900, 5), TraceRequest("short", 0.1, 20, 5)]
    summary = summarize(replay(rows, random_config(0), COST, Capacity(40, 16)))
    assert (summary.num_refused, summary.num_finished) == (1, 1)


@pytest.mark.plain
def test_in_debug_mode_a_leaked_block_is_found_when_the_engine_falls_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without it the run ends as if nothing had happened."""
    rows = [TraceRequest("a", 0.0, 20, 5)]
    config = replace(random_config(0), replicas=1, decode_runs=True)
    replay(rows, replace(config, debug=True), COST, Capacity(40, 16))

    def leaking_release(self: KVCache, request: Request, *, returns: bool = False) -> None:
        self.pool.release(request.block_ids[:-1], 0)
        request.block_ids = []

    monkeypatch.setattr(KVCache, "release", leaking_release)
    replay(rows, config, COST, Capacity(40, 16))
    with pytest.raises(ExceptionGroup) as caught:
        replay(rows, replace(config, debug=True), COST, Capacity(40, 16))
    assert caught.group_contains(AssertionError, match="neither held nor free")


def test_ctrl_c_ends_a_replay_whose_requests_have_all_arrived() -> None:
    """The client has gone by then, and the queue may be served for hours."""
    rows = [TraceRequest(f"r{number}", 0.0, 100, 50) for number in range(20)]

    def press(num_arrived: int) -> None:
        if num_arrived == len(rows):
            os.kill(os.getpid(), signal.SIGINT)

    config = EngineConfig(
        scheduler=SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=256, max_model_len=280)
    )
    with pytest.raises(Interrupted) as caught:
        replay(rows, config, COST, Capacity(200, 16), on_progress=press)
    summary = summarize(caught.value.recorder)
    assert (summary.num_requests, summary.num_finished) == (20, 1)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
