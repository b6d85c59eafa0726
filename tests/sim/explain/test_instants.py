"""Snapshots of a recorded run, as the live page shows them."""

from sundog.actors.core.request import Submit
from sundog.actors.metrics.measured import Measured
from sundog.actors.metrics.totals import EngineTotals
from sundog.sim.explain.instants import laid_out


def holder(replica: int, num_blocks: int, num_cached_blocks: int = 0) -> Measured:
    request = Measured(Submit("r", 0.0, 100, 100))
    request.replica, request.block_ids, request.num_cached_tokens = (
        replica,
        [*range(num_blocks)],
        16 * num_cached_blocks,
    )
    return request


def held(num_blocks: int) -> EngineTotals:
    return EngineTotals(1, num_blocks=100, block_size=16, num_free_blocks=100 - num_blocks)


def test_blocks_are_of_one_request_or_shared() -> None:
    """Where there are enough for all, none is shared; else what is beyond their own is shared by several."""
    one, two, other = holder(0, 5, 2), holder(0, 4, 2), holder(1, 4)
    assert [*laid_out([other, one], 0, held(6))] == [(1, 6, 1)]
    assert [*laid_out([one, two, other], 0, held(7))] == [(1, 3, 0), (4, 2, 1), (6, 2, -1)]
    assert [*laid_out([one, two, other], 0, held(10))] == [(1, 6, 0), (7, 4, 1)]
    assert [*laid_out([one], 0, held(0))] == [] and [*laid_out([], 0, held(2))] == [(1, 2, -1)]
