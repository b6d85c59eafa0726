"""The block pool: nothing is lost, and blocks are reused in vLLM's order."""

import random
import time
import tracemalloc
from collections import Counter, OrderedDict

import pytest

from actors.core.blocks.block_pool import BlockPool


def test_blocks_are_handed_out_in_ascending_order_and_never_the_null_block() -> None:
    """Block 0 is nobody's."""
    pool = BlockPool(6)
    assert pool.num_free == 5
    assert pool.take(5) == [1, 2, 3, 4, 5]
    assert pool.num_free == 0


def test_empty_blocks_are_reused_last_in_first_out() -> None:
    """The tail block foremost: a request that let go and comes back gets the same blocks."""
    pool = BlockPool(8)
    table = pool.take(3)
    pool.release(table)
    assert pool.free_order == [3, 2, 1, 4, 5, 6, 7]


def test_cached_blocks_are_reused_last_and_prefixes_last_of_all() -> None:
    """They join the back of the queue tail first, so that a prefix outlives what follows it."""
    pool = BlockPool(6)
    table = pool.take(3)
    pool.register(table[0], "head")
    pool.register(table[1], "middle")
    pool.release(table)
    assert pool.free_order == [3, 4, 5, 2, 1]
    assert pool.find("head") == 1


@pytest.mark.parametrize("num_known", [None, 0, 1, 2, 3])
def test_blocks_that_only_their_owner_counts_are_reused_tail_first_too(num_known: int | None) -> None:
    """Where tokens are only counted, full blocks have no key: their order is that of blocks that have one."""
    pool = BlockPool(8)
    pool.release(pool.take(5), num_kept=3, num_known=num_known)
    assert pool.free_order == [5, 4, 6, 7, 3, 2, 1]
    assert pool.take(7) == [5, 4, 6, 7, 3, 2, 1]


def test_a_block_forgets_what_it_held_when_it_is_reused_and_not_before() -> None:
    """Free cached blocks can still be found; a new holder's block cannot."""
    pool = BlockPool(3)
    table = pool.take(2)
    pool.register(table[0], "kept")
    pool.release(table)
    assert pool.find("kept") == 1 and pool.num_cached == 1
    assert pool.take(2) == [2, 1]
    assert pool.find("kept") is None and pool.num_cached == 0


def test_the_oldest_duplicate_is_found() -> None:
    """Equal contents are not merged; when the oldest is reused the next one is found."""
    pool = BlockPool(4)
    first, second, third = pool.take(3)
    for block in (second, first, third):
        pool.register(block, "same")
    assert pool.find("same") == second
    pool.release([second])
    pool.take(1)
    assert pool.find("same") == first


def test_a_shared_block_is_free_only_when_all_have_let_go() -> None:
    """And sharing a free block takes it out of the free queue."""
    pool = BlockPool(3)
    table = pool.take(1)
    pool.register(table[0], "shared")
    pool.share(table)
    pool.release(table)
    assert not pool.is_free(1)
    pool.release(table)
    assert pool.is_free(1) and pool.free_order == [2, 1]
    pool.share([1])
    assert pool.free_order == [2]


def test_a_shared_block_that_is_forgotten_is_reused_like_an_empty_one() -> None:
    """Its last reader leaves nothing in it that anybody could find."""
    pool = BlockPool(5)
    table = pool.take(2)
    pool.register(table[0], "never computed")
    pool.share(table[:1])
    pool.forget(table[0])
    pool.release(table[:1])
    pool.release(table)
    assert pool.free_order == [2, 1, 3, 4] and pool.num_cached == 0


def test_forgetting_everything_is_refused_while_any_block_is_held() -> None:
    """And then nothing is changed."""
    pool = BlockPool(4)
    table = pool.take(1)
    pool.register(table[0], "key")
    assert not pool.forget_all()
    assert pool.find("key") == 1
    pool.release(table)
    assert pool.forget_all()
    assert pool.find("key") is None and pool.num_cached == 0 and pool.num_free == 3


def test_taking_more_than_is_free_is_a_bug_that_raises() -> None:
    """Whoever takes has asked before."""
    pool = BlockPool(3)
    with pytest.raises(KeyError, match="3 blocks are asked for, 2 are free"):
        pool.take(3)
    assert pool.free_order == [1, 2]


@pytest.mark.parametrize("seed", range(20))
def test_blocks_are_conserved_whatever_happens(seed: int) -> None:
    """Random takes, shares, registrations, releases and resets: `check` holds after each."""
    rng = random.Random(seed)
    pool = BlockPool(rng.choice([2, 3, 9, 30]))
    tables: list[list[int]] = []
    for _ in range(200):
        match rng.randrange(5):
            case 0 if pool.num_free:
                tables.append(pool.take(rng.randint(1, pool.num_free)))
            case 1 if tables:
                table = rng.choice(tables)
                cached = [block for block in table if block in pool._keys]
                if cached:
                    pool.share(cached)
                    tables.append(cached)
            case 2 if tables:
                for block in rng.choice(tables):
                    if block not in pool._keys:
                        pool.register(block, rng.randrange(6))
            case 3 if tables:
                pool.release(tables.pop(rng.randrange(len(tables))))
            case 4:
                assert pool.forget_all() is (not tables)
        pool.check(tables)
        held = {block for table in tables for block in table}
        assert pool.num_free + len(held) == pool.num_blocks - 1


class OrderedPool:
    """The free queue as its laws say it, in an ordered dictionary."""

    def __init__(self, num_blocks: int) -> None:
        self.free = OrderedDict.fromkeys(range(1, num_blocks))
        self.num_refs = Counter[int]()
        self.kept: set[int] = set()

    def take(self, count: int) -> list[int]:
        blocks = [self.free.popitem(last=False)[0] for _ in range(count)]
        self.num_refs.update(blocks)
        self.kept -= set(blocks)
        return blocks

    def share(self, blocks: list[int]) -> None:
        for block in blocks:
            self.free.pop(block, None)
        self.num_refs.update(blocks)

    def release(self, table: list[int], cached: set[int]) -> None:
        self.num_refs.subtract(table)
        free = [block for block in reversed(table) if not self.num_refs[block]]
        self.kept |= cached & set(free)
        self.free.update(dict.fromkeys(block for block in free if block in cached))
        for block in reversed([block for block in free if block not in cached]):
            self.free[block] = None
            self.free.move_to_end(block, last=False)


@pytest.mark.parametrize("num_blocks", [4, 10, 40])
@pytest.mark.parametrize("seed", range(10))
def test_the_free_queue_is_in_the_order_that_its_laws_say(seed: int, num_blocks: int) -> None:
    """Blocks taken, shared out of the middle and put back at both ends, a thousand times over."""
    rng = random.Random(seed)
    pool, ordered = BlockPool(num_blocks), OrderedPool(num_blocks)
    tables: list[list[int]] = []
    for turn in range(1_000):
        hit = [b for b in (pool.find(rng.randrange(num_blocks)) for _ in range(3)) if b is not None]
        hit = list(dict.fromkeys(hit))
        if tables and rng.random() < 0.5:
            table = tables.pop(rng.randrange(len(tables)))
            num_kept = rng.randrange(len(table) + 1)
            cached = {block for block in table if block in pool._keys}
            cached |= {block for block in table[:num_kept] if block not in pool._readers}
            shared = [n for n, block in enumerate(table, 1) if block in pool._keys or block in pool._readers]
            num_known = rng.choice([None, rng.randint(max(shared, default=0), len(table))])
            pool.release(table, num_kept, num_known)
            ordered.release(table, cached)
        elif hit and rng.random() < 0.7:
            pool.share(hit)
            ordered.share(hit)
            tables.append(hit)
        elif pool.num_free:
            count = rng.randint(1, min(pool.num_free, 5))
            table = pool.take(count)
            assert table == ordered.take(count)
            for block in table[: rng.randrange(count + 1)]:
                pool.register(block, rng.randrange(num_blocks))
            tables.append(table)
        assert pool.free_order == list(ordered.free), turn
        assert pool.num_free == len(ordered.free)
        assert pool.num_cached == len(ordered.kept | {b for b in pool._keys if ordered.num_refs[b]})
        assert len(pool._queue) <= 5 * num_blocks and pool._num_holes == pool._queue[pool._head :].count(0)


def test_the_check_finds_a_block_that_leaked() -> None:
    """A law that cannot fail is no law."""
    pool = BlockPool(4)
    pool.take(1)
    with pytest.raises(AssertionError, match=r"neither held nor free: \[1\]"):
        pool.check([])


@pytest.mark.parametrize("damage", ["twice", "null", "counted", "moved", "placed", "unplaced", "unknown"])
def test_the_check_finds_each_kind_of_damage(damage: str) -> None:
    """To the free queue, to its count, and to the places of free blocks that hold something."""
    pool = BlockPool(6)
    table = pool.take(3)
    pool.register(table[0], "a")
    pool.release(table)
    pool.check([])
    match damage:
        case "twice":
            pool._queue.append(5)
        case "null":
            pool._queue[-1] = 0
        case "counted":
            pool.num_free += 1
        case "moved":
            pool._queue[-2:] = pool._queue[-1:] + pool._queue[-2:-1]
        case "placed":
            pool._place[5] = pool._queue.index(5)
        case "unplaced":
            pool._place.clear()
        case "unknown":
            pool._keys.clear()
    with pytest.raises(AssertionError):
        pool.check([])


def test_a_pool_of_a_hundred_thousand_blocks_is_small() -> None:
    """Under 20 MB, for a big GPU has so many."""
    tracemalloc.start()
    pool = BlockPool(100_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert pool.num_free == 99_999
    assert peak < 20_000_000


def test_the_cost_of_a_block_does_not_grow_with_the_pool() -> None:
    """Taking and letting go is as quick among 200,000 blocks as among 2,000, within noise."""

    def round_s(num_blocks: int) -> float:
        pool = BlockPool(num_blocks)
        start = time.perf_counter()
        for _ in range(200):
            pool.release(pool.take(8))
        return time.perf_counter() - start

    small = min(round_s(2_000) for _ in range(5))
    large = min(round_s(200_000) for _ in range(5))
    assert large < 20 * small
