"""The instants of a recorded run, as the live page draws them."""

from sim.explain.instants import _laid_out


def test_blocks_are_of_one_request_or_shared() -> None:
    """Where there are enough for all, none is shared; else what is beyond their own is shared by several."""
    one = {"replica": 0, "num_blocks": 5, "num_own_blocks": 3}
    two = {"replica": 0, "num_blocks": 4, "num_own_blocks": 2}
    other = {"replica": 1, "num_blocks": 4, "num_own_blocks": 4}
    assert [*_laid_out([other, one], 0, 6)] == [(1, 6, 1)]
    assert [*_laid_out([one, two, other], 0, 7)] == [(1, 3, 0), (4, 2, 1), (6, 2, -1)]
    assert [*_laid_out([one, two, other], 0, 10)] == [(1, 6, 0), (7, 4, 1)]
    assert [*_laid_out([one], 0, 0)] == [] and [*_laid_out([], 0, 2)] == [(1, 2, -1)]
