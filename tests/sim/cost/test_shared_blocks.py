"""Blocks shared by several decodes are counted exactly while they are read."""

from sundog.actors.core.batch import Admission, Batch, Chunk
from sundog.actors.core.params.sampling import DEFAULTS
from sundog.sim.cost.work import WorkFold

BLOCK_SIZE = 4


def admitted(name: str, num_hit: int, *blocks: int) -> Admission:
    return Admission(name, 9, 9, num_hit, blocks, None, DEFAULTS)


def test_what_idles_shares_nothing() -> None:
    """Two requests of one prompt wait for their last token to come back, while another is computed."""
    fold = WorkFold(BLOCK_SIZE)
    both = (admitted("a", 0, 1, 2, 3), admitted("b", 8, 1, 2, 4), admitted("c", 8, 1, 2, 5))
    fold.begin(Batch(1, both, (Chunk("a", 9, True), Chunk("b", 1, True), Chunk("c", 1, True))))
    fold.advance(1)
    work = fold.begin(Batch(2, num_decodes=3))
    assert (work.decode_context_tokens, work.num_shared_tokens) == (30, 4 * BLOCK_SIZE)
    fold.advance(1)
    work = fold.begin(Batch(3, idle=("b",), num_decodes=2))
    assert (work.decode_context_tokens, work.num_shared_tokens) == (22, 2 * BLOCK_SIZE)
    fold.advance(1)
    late = (admitted("d", 0, 6, 7, 8),)
    work = fold.begin(Batch(4, late, (Chunk("d", 9, True),), idle=("a", "b", "c"), num_decodes=0))
    assert (work.decode_context_tokens, work.num_shared_tokens) == (0, 0)
    fold.advance(1)
    work = fold.begin(Batch(5, num_decodes=2, finished=("a", "b")))
    assert work.num_shared_tokens == 0
