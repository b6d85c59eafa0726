"""The cost backend: its state equals the plain count, runs equal steps, every token is given."""

import functools
import random
from collections import Counter
from itertools import accumulate

import numpy as np
import pytest
import trio

from sundog.actors.core.batch import Admission, Batch, Chunk, StepResult
from sundog.actors.core.params.sampling import Sampling
from sundog.actors.kernel.clock import now_s
from sundog.actors.messages import Capacity, StepOutput
from sundog.sim.backend import TICKS_PER_S, CostBackend, Pace, Paced, end_times_s, to_s, to_ticks
from sundog.sim.clock import run_virtual
from sundog.sim.cost.work import WorkFold
from sundog.sim.oracle import Oracle
from sundog.sim.record.recorder import Recorder
from sundog.sim.record.rows import step_intervals
from tests.sim.toy import CAPACITY, COST, Toy, counting_backend, play, recorded

SEEDS = range(30)


def played(seed: int, most_steps: int) -> tuple[list[StepOutput], Recorder]:
    toy = Toy(seed, most_steps=most_steps)
    outputs = run_virtual(functools.partial(play, toy, counting_backend(toy)))
    return outputs, recorded(toy, outputs)


@pytest.mark.parametrize("seed", SEEDS)
def test_folded_work_equals_the_plain_count(seed: int) -> None:
    """Through preemptions, resumptions, idle steps and runs, the diffs add up to the batch."""
    toy = Toy(seed, most_steps=7)
    fold, oracle = WorkFold(), Oracle(dict(toy.lengths))
    while not toy.done:
        batch, expected = toy.plan()
        assert fold.begin(batch) == expected
        num_steps = oracle.begin(batch)
        fold.advance(num_steps)
        ended = oracle.sample(num_steps).ended
        toy.update(batch, StepResult(batch.step, (0.0,) * num_steps, None, ended), 0.0)


@pytest.mark.parametrize("seed", range(20))
def test_blocks_that_several_decodes_read_are_counted(seed: int) -> None:
    """Every reader but one of each block, from the first hit of the prefix cache on."""
    rng, fold, hit = random.Random(seed), WorkFold(16), False
    tables: dict[str, tuple[int, ...]] = {}
    for number in range(1, 60):
        finished = tuple(name for name in tables if rng.random() < 0.1)
        num_decodes = len(tables) - len(finished)
        for name in finished:
            del tables[name]
        counts = Counter(block for table in tables.values() for block in table)
        prefix, name = tuple(range(rng.randrange(6))), f"r{number}"
        table = (*prefix, 100 * number, 100 * number + 1)
        hit = hit or bool(prefix)
        admitted = Admission(
            name, len(table) * 16, len(table) * 16, len(prefix) * 16, table, None, Sampling(), False
        )
        chunk = Chunk(name, 32, True)
        batch = Batch(
            number, admitted=(admitted,), chunks=(chunk,), finished=finished, num_decodes=num_decodes
        )
        shared = fold.begin(batch).num_shared_tokens
        assert shared == 16 * sum(count - 1 for count in counts.values())
        fold.advance(1)
        tables[name] = table
    assert hit


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("seed", SEEDS)
def test_runs_of_steps_end_at_the_very_times_of_single_steps(seed: int) -> None:
    """The grouping of steps changes no end time, no end and no figure, bit for bit."""
    outcomes = []
    for most_steps in (1, 3, 1000):
        outputs, recorder = played(seed, most_steps)
        ends = [end for output in outputs for end in output.end_times_s]
        finishes = [(o.end_times_s[-1], f) for o in outputs for f in o.finished]
        steps, columns = recorder.steps[0], recorder.columns
        intervals = [values.tolist() for values in step_intervals(steps)]
        use = recorder.kv_use[0]
        figures = (
            columns.first_token_s,
            columns.num_output_tokens,
            columns.finish_s,
            intervals,
            use.block_seconds,
            use.max_blocks,
            columns.recomputed_tokens,
        )
        outcomes.append((ends, finishes, figures))
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert len(played(seed, 1000)[0]) < len(outcomes[0][0])


def test_durations_are_whole_ticks_of_at_least_one() -> None:
    """Half to even, and time always moves."""
    assert to_ticks(0.0) == to_ticks(1e-12) == 1
    assert to_ticks(2.5 / TICKS_PER_S) == 2 and to_ticks(3.5 / TICKS_PER_S) == 4
    seconds = [0.0, 0.1, 2.5 / TICKS_PER_S, 1e-3, 12.345]
    ends = list(accumulate(map(to_ticks, seconds), initial=10**15))[1:]
    assert list(end_times_s(10**15, np.array(seconds))) == [to_s(end) for end in ends]


def test_an_empty_batch_takes_no_time() -> None:
    """A batch that only says who finished costs nothing on the GPU."""

    async def main() -> float:
        backend = CostBackend(Pace(COST), Oracle(), CAPACITY)
        result = await backend.execute(Batch(1, finished=("gone",)))
        assert result.end_times_s == (0.0,) and result.num_steps == 1
        return now_s()

    assert run_virtual(main) == 0.0


def test_a_batch_that_miscounts_its_decodes_is_a_bug_that_raises() -> None:
    """Both ends keep the decoding set by rule; if they differ, nothing after is true."""
    with pytest.raises(AssertionError, match="step 3.*counts 2 decodes"):
        WorkFold().begin(Batch(3, num_decodes=2))


def admission(name: str, num_prompt_tokens: int, num_tokens: int | None = None) -> Admission:
    total = num_tokens or num_prompt_tokens
    return Admission(name, total, num_prompt_tokens, 0, (), None, Sampling(), bool(num_tokens))


def test_the_oracle_ends_a_one_token_request_with_its_prompt() -> None:
    """The chunk that samples gives the first token, which may be the last."""
    oracle = Oracle({"a": 1})
    oracle.add("b", 2)
    batch = Batch(
        1, admitted=(admission("a", 5), admission("b", 5)), chunks=(Chunk("a", 5, True), Chunk("b", 5, True))
    )
    assert oracle.begin(batch) == 1
    assert oracle.sample(1).ended == ("a",)
    assert oracle.begin(Batch(2, finished=("a",), num_decodes=1, max_steps=9)) == 1
    sampled = oracle.sample(1)
    assert sampled.tokens is None and sampled.ended == ("b",)
    with pytest.raises(ValueError, match="at least 1"):
        oracle.add("c", 0)


def test_a_request_without_a_known_length_never_ends_by_itself() -> None:
    """Its limit ends it."""
    oracle = Oracle()
    oracle.begin(Batch(1, admitted=(admission("a", 5),), chunks=(Chunk("a", 5, True),)))
    assert oracle.sample(1).ended == ()
    assert oracle.begin(Batch(2, num_decodes=1, max_steps=77)) == 77


class Echo:
    """An inner backend that answers every sampling request with token 42 and takes no time."""

    async def load(self) -> Capacity:
        return CAPACITY

    async def execute(self, batch: Batch) -> StepResult:
        await trio.lowlevel.checkpoint()
        return StepResult(batch.step, (now_s(),), (("a", 42),), ())

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()


def test_paced_steps_have_real_tokens_and_modelled_times() -> None:
    """The inner backend's tokens at the cost backend's end times."""

    async def main() -> None:
        paced = Paced(Echo(), Pace(COST))
        modelled = CostBackend(Pace(COST), Oracle({"a": 9}), CAPACITY)
        assert await paced.load() == CAPACITY == await modelled.load()
        first = Batch(1, admitted=(admission("a", 5),), chunks=(Chunk("a", 5, True),))
        spans = []
        for backend in (paced, modelled):
            start_s = now_s()
            for batch in (first, Batch(2, num_decodes=1, max_steps=4)):
                result = await backend.execute(batch)
                assert result.tokens == ((("a", 42),) if backend is paced else None)
                spans.append(result.end_times_s[0] - start_s)
            assert result.num_steps == (1 if backend is paced else 4)
        assert spans[:2] == spans[2:]
        await paced.close()

    run_virtual(main)


def test_two_backends_do_not_move_each_others_clocks() -> None:
    """Steps of two replicas overlap in time."""

    async def one(name: str) -> float:
        backend = CostBackend(Pace(COST, key=name), Oracle({name: 3}), CAPACITY)
        batch = Batch(1, admitted=(admission(name, 5),), chunks=(Chunk(name, 5, True),))
        await backend.execute(batch)
        await backend.execute(Batch(2, num_decodes=1, max_steps=10))
        return now_s()

    async def main() -> None:
        alone = await one("a")
        base = now_s()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, "b")
            nursery.start_soon(one, "c")
        assert now_s() - base == alone

    run_virtual(main)
