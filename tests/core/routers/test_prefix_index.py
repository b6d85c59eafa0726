"""The Router's indexes of blocks: their accuracy and their bounds."""

import random

from sundog.actors.core.routers.prefix_index import REPEATS, SentBlocks, StoredBlocks, num_leading


def prompt(rng: random.Random) -> tuple[object, ...]:
    """Blocks that are named by all before them, as those of a prompt are."""
    path: list[tuple[int, ...]] = []
    for _ in range(rng.randrange(1, 12)):
        path.append((*(path[-1] if path else ()), rng.randrange(2)))
    return tuple(path)


def test_bisection_finds_what_counting_finds() -> None:
    """Where a block is known with all before it."""
    keys = tuple(range(37))
    for length in range(38):
        for num_known in range(38):
            known = dict.fromkeys(keys[:num_known])
            assert num_leading(keys[:length], known) == min(length, num_known)


def test_what_was_sent_is_found_until_the_capacity_is_used_by_later_prompts() -> None:
    """The index is closed under beginnings, holds no more than its capacity, and its notes are bounded."""
    rng, index = random.Random(1), SentBlocks(50)
    for _ in range(2000):
        keys = prompt(rng)
        index.sent(keys)
        assert index.num_hit_blocks(keys) == len(keys)
        assert len(index._last) <= 50 and index._num_keys <= REPEATS * 50
        assert all(key[:-1] in index._last for key in index._last if len(key) > 1)  # type: ignore[arg-type,index]
        assert index._num_keys == sum(len(keys) for _, keys in index._prompts)


def test_a_prompt_longer_than_the_capacity_is_not_kept() -> None:
    index = SentBlocks(5)
    index.sent(tuple(range(9)))
    assert index.num_hit_blocks(tuple(range(9))) == 0
    index.sent(tuple(range(4)))
    assert index.num_hit_blocks(tuple(range(9))) == 4


def test_what_is_stored_is_known_until_it_is_removed() -> None:
    """A block that is removed and stored in the same message is there."""
    index = StoredBlocks()
    index.changed(stored="abcd", removed="")
    index.changed(stored="c", removed="dc")
    assert [index.num_hit_blocks(keys) for keys in ("abcd", "ab", "x", "")] == [3, 2, 0, 0]
