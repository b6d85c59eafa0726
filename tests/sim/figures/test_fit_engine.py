"""Fit of an engine's cost model, measured step by step through its Runner."""

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import trio

from sundog.actors.engine.executor import Executor, Runner
from sundog.actors.kernel.actor import Ref, Reply
from sundog.actors.kernel.clock import Event, now_s, sleep_until
from sundog.actors.messages import Batch, Capacity, Interrupt, Load, StepResult
from sundog.sim.clock import run_virtual
from sundog.sim.cost.calibrated import Calibrated, errors
from sundog.sim.cost.work import StepWork, WorkFold
from sundog.sim.figures.fit_engine import (
    EngineFitted,
    Limits,
    Prober,
    Shape,
    fit_engine,
    fit_points,
    grid,
    held_out,
)
from tests.timers import call_at

TRUTH = Calibrated(
    step=2e-3,
    per_token=4e-6,
    per_context_token=1e-7,
    per_decode=5e-6,
    per_prefill_pair=8e-9,
    per_chunk=6e-5,
    per_chunk_context_token=1e-7,
    bends=((16.0, 8e-6), (64.0, 8e-6), (512.0, 9e-6)),
    context_bends=((2048.0, 2e-7), (8192.0, 2e-7)),
)
CAPACITY = Capacity(1000, 16)
LIMITS = Limits(64, 1024, 1500, 900, 16)


class Timed:
    """A backend whose steps take what `truth` says, every `each`-th of them `times` as long.

    It refuses batches that no scheduler would send: blocks that two requests write, unknown ones, and
    requests that outgrow theirs.
    """

    def __init__(self, each: int = 1, times: float = 1.0, truth: Calibrated = TRUTH) -> None:
        self._fold, self._each, self._times, self._truth = WorkFold(), each, times, truth
        self.works: list[StepWork] = []
        self._tables: dict[str, tuple[int, ...]] = {}

    async def load(self) -> Capacity:
        return CAPACITY

    async def execute(self, batch: Batch) -> StepResult:
        for name in batch.finished:
            del self._tables[name]
        for admission in batch.admitted:
            self._tables[admission.request_id] = admission.block_ids
            assert len(admission.block_ids) * CAPACITY.block_size >= admission.num_tokens
        used = [block for table in self._tables.values() for block in table]
        assert len(set(used)) == len(used) and max(used) < CAPACITY.num_blocks and min(used) > 0
        work = self._fold.begin(batch)
        self.works.append(work)
        disturbed = len(self.works) % self._each == 0
        seconds = self._truth.step_s(work) * (self._times if disturbed else 1.0)
        await sleep_until(now_s() + seconds, Event.STEP_END, "timed")
        self._fold.advance(1)
        return StepResult(batch.step, (now_s(),))

    async def close(self) -> None:
        pass


class Ahead(Timed):
    """A device whose steps are launched while others run; a launch takes 3 ms until it is under way."""

    def __init__(self) -> None:
        super().__init__()
        self._busy_until_s = 0.0
        self.most_under_way = self._under_way = 0

    def execute(self, batch: Batch) -> Reply[StepResult]:  # type: ignore[override]  # or a coroutine
        reply: Reply[StepResult] = Reply()
        self._under_way += 1
        self.most_under_way = max(self.most_under_way, self._under_way)
        work = self._fold.begin(batch)
        self._fold.advance(1)
        self._busy_until_s = max(self._busy_until_s, now_s() + 0.003) + self._truth.step_s(work)
        call_at(self._busy_until_s, Event.STEP_END, "ahead", partial(self._end, batch.step, reply))
        return reply

    def _end(self, step: int, reply: Reply[StepResult]) -> None:
        self._under_way -= 1
        reply.set(StepResult(step, (now_s(),)))


@asynccontextmanager
async def executor(backend: Timed) -> AsyncIterator[Ref[Batch | Interrupt | Load]]:
    async with trio.open_nursery() as nursery:
        runner = Runner("runner", backend)
        first = Executor("executor", [runner.ref("executor")])
        address = first.ref("test")
        await nursery.start(runner.live)
        await nursery.start(first.live)
        yield address
        address.close()


def fitted(backend: Timed, seconds: float = 0.0, is_ahead: bool = False) -> EngineFitted:
    async def measure() -> EngineFitted:
        async with executor(backend) as address:
            prober = Prober(address, CAPACITY, 100, seed=1, is_ahead=is_ahead)
            await prober.write(900, 900, 1024, 1500, 0.0)
            return await fit_engine(prober, LIMITS, seconds, seed=1)

    return run_virtual(measure)


def some_works() -> list[StepWork]:
    rng = random.Random(3)
    works = []
    for _ in range(50):
        num = rng.randint(0, 60)
        chunks = tuple((rng.randint(1, 400), rng.randint(0, 1000)) for _ in range(rng.randint(not num, 3)))
        works.append(StepWork(num, num * rng.randint(10, 200), chunks, num + len(chunks)))
    return works


def test_an_engine_whose_steps_follow_the_formula_is_found_again() -> None:
    """Every kind of work has its price; the shapes that were not fitted say so."""
    found = fitted(Timed())
    for work in some_works():
        assert found.model.step_s(work) == pytest.approx(TRUTH.step_s(work), rel=0.01)
    assert found.error(1.0) < 0.01 and found.num_rounds == 3 and found.unrest < 0.01
    assert found.measured.tokens >= 1024 and found.measured.decodes == 64


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_disturbed_steps_are_left_out() -> None:
    """Every second step takes three times as long, and the file says that the machine was busy."""
    found = fitted(Timed(2, 3.0), 60.0)
    for work in some_works():
        assert found.model.step_s(work) == pytest.approx(TRUTH.step_s(work), rel=0.03)
    assert found.unrest > 0.25


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_a_device_that_launches_steps_with_chunks_one_kernel_at_a_time_is_found_again() -> None:
    """As a GPU: decodes are recordings; a step with a chunk takes 20 ms at least, beside decodes 24."""
    truth = replace(TRUTH, chunked_floor=0.02, mixed_floor=0.024)
    found = fitted(Timed(truth=truth))
    assert found.model.chunked_floor == pytest.approx(0.02, rel=0.01)
    assert found.model.mixed_floor == pytest.approx(0.024, rel=0.01)
    for work in some_works():
        assert found.model.step_s(work) == pytest.approx(truth.step_s(work), rel=0.03)
    assert found.error(1.0) < 0.03
    assert fitted(Timed()).model.chunked_floor == 0.0


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_decode_steps_of_an_engine_that_plans_ahead_take_what_lies_between_their_results() -> None:
    """The way to the device is hidden behind the step before: asked for one by one they seem 3 ms longer."""
    device = Ahead()
    ahead, alone = fitted(device, is_ahead=True).model, fitted(Ahead()).model
    assert device.most_under_way == 2
    for work in some_works():
        decodes = replace(work, chunks=(), num_decodes=max(work.num_decodes, 1))
        assert ahead.step_s(decodes) == pytest.approx(TRUTH.step_s(decodes), rel=0.05)
        assert alone.step_s(decodes) == pytest.approx(TRUTH.step_s(decodes) + 0.003, rel=0.05)


H200 = Path(__file__).parent / "h200-qwen3-0.6b-steps.json"


def test_steps_of_a_real_gpu_are_explained() -> None:
    """Qwen3-0.6B on an H200: recorded decodes take 5 to 7 ms, chunks of any size 40, and 48 beside decodes.

    Without floors the 24 shapes that are not fitted to were off by 31 % (median).
    """
    steps = [
        (StepWork(num, tokens, tuple(map(tuple, chunks)), num + len(chunks)), seconds)
        for _, num, tokens, chunks, seconds in json.loads(H200.read_text())
    ]
    known, others = steps[:92], steps[92:]
    model = fit_points(known)
    off = np.abs(errors(model, others))
    assert len(others) == 24 and np.median(off) < 0.05 and np.quantile(off, 0.9) < 0.12
    assert model.chunked_floor == pytest.approx(0.040, rel=0.02)
    assert model.mixed_floor == pytest.approx(0.048, rel=0.02)
    cached_prompt = StepWork(0, 0, ((1, 4096),), 1)
    assert model.step_s(cached_prompt) < 0.006


def test_the_model_is_monotone_whatever_was_measured() -> None:
    """Steps of random lengths give no price below zero."""
    model = fitted(Timed(3, 0.1)).model
    slopes = [model.per_token, *(slope for _, slope in model.bends)]
    slopes += [model.per_context_token, *(slope for _, slope in model.context_bends)]
    assert min(model.step, model.per_decode, model.per_chunk, model.per_prefill_pair, *slopes) >= 0
    assert all(left[0] < right[0] for left, right in pairwise(model.bends))


@pytest.mark.parametrize(
    "limits", [Limits(1, 1, 5, 3, 16), Limits(256, 8192, 40_000, 70_000, 16), Limits(4, 64, 120, 40, 4)]
)
def test_every_shape_fits_the_engine(limits: Limits) -> None:
    """Small and large ones; those held out are no shapes of the grid."""
    shapes = grid(limits)
    assert shapes and all(limits.allow(shape) for shape in shapes)
    assert all(limits.allow(shape) for shape in held_out(limits, 0))
    assert held_out(limits, 0) == held_out(limits, 0) != held_out(limits, 1) or limits.num_seqs == 1


def test_a_shape_says_what_it_is() -> None:
    """For the line that names the worst."""
    assert str(Shape((10, 20), ((64, 3),))) == "2 decodes at 15 + 64 after 3"
