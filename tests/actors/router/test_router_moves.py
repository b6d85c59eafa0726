"""Requests that a router moves where no link carries their KV: they are computed again, token for token."""

import pytest
import trio

from tests.actors.fakes import read
from tests.core.traces import num_cases
from tests.sim.fleet.fleets import Restless
from tests.test_fates import BACKOFF, ask, health, served
from tests.test_laws import NUM_BLOCKS, asked, run


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("counts", [False, True], ids=["tokens", "counts"])
def test_a_moved_request_gets_exactly_its_tokens_once_and_ends_once(counts: bool, is_async: bool) -> None:
    """Whatever is in flight for it when it leaves; and every block is free in the end."""
    num_moved = 0
    for seed in range(num_cases(6)):
        seen = run(asked(seed), replicas=3, router=Restless(), counts=counts, async_scheduling=is_async)
        ends = sorted(finish.request_id for _, finish in seen.finishes if finish.reason != "handed")
        assert ends == sorted(row.name for row in seen.asked) == sorted(seen.answers)
        num_moved += len(seen.finishes) - len(ends)
        for row in seen.asked:
            delta = seen.answers[row.name][1]
            if delta.finish_reason == "abort":
                assert counts or delta.token_ids == row.expected[: delta.num_tokens]
            else:
                assert delta.num_tokens == (0 if counts else len(row.expected))
                assert counts or delta.token_ids == row.expected
        for outputs in seen.of_replica().values():
            assert outputs[-1].num_free_blocks == NUM_BLOCKS - 1
    assert num_moved > 20


async def test_an_engine_that_crashes_loses_no_request_on_its_way_and_ends_each_once() -> None:
    """What had begun there ends with an error; all others get their tokens, moved or not."""
    async with served(router=Restless(), replicas=2, max_num_seqs=4) as (world, client):
        answers = [await ask(client, f"r{number}", 20) for number in range(8)]
        await trio.sleep(0.02)
        world.crash()
        ends = [await read(answer) for answer in answers]
        assert {end.finish_reason for end in ends} <= {"length", "error"}
        assert all(end.num_tokens == 20 for end in ends if end.finish_reason == "length")
        await trio.sleep(2 * BACKOFF.first_s)
        assert (await health(client)).status == "healthy"
    finished = [finish for output in world.listener.outputs for finish in output.finished]
    assert "handed" in [finish.reason for finish in finished]
