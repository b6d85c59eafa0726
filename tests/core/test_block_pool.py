"""The block pool: nothing is lost, and blocks are reused in vLLM's order."""

import random
import time
import tracemalloc
from collections import Counter, OrderedDict
from dataclasses import dataclass
from itertools import accumulate, takewhile

import pytest

from sundog.actors.core.blocks.block_pool import BlockPool


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
    pool.release(table, 0)
    assert pool.free_order == [3, 2, 1, 4, 5, 6, 7]


def test_cached_blocks_are_reused_last_and_prefixes_last_of_all() -> None:
    """They join the back of the queue tail first, so that a prefix outlives what follows it."""
    pool = BlockPool(6)
    table = pool.take(3)
    pool.register(table, ["head", "middle"], 0, 2)
    pool.release(table, 2)
    assert pool.free_order == [3, 4, 5, 2, 1]
    assert pool.find(["head", "middle"], 2) == [1, 2]


@pytest.mark.parametrize("num_known", [0, 1, 2, 3])
def test_blocks_that_only_their_owner_counts_are_reused_tail_first_too(num_known: int) -> None:
    """Where tokens are only counted, full blocks have no key: their order is that of blocks that have one."""
    pool = BlockPool(8)
    table = pool.take(5)
    pool.register(table, ["a", "b", "c"], 0, num_known)
    pool.release(table, num_known, 3)
    assert pool.free_order == [5, 4, 6, 7, 3, 2, 1]
    assert pool.take(7) == [5, 4, 6, 7, 3, 2, 1]


def test_a_block_forgets_what_it_held_when_it_is_reused_and_not_before() -> None:
    """Free cached blocks can still be found; a new holder's block cannot."""
    pool = BlockPool(3)
    table = pool.take(2)
    pool.register(table, ["kept"], 0, 1)
    pool.release(table, 1)
    assert pool.find(["kept"], 1) == [1] and pool.num_cached == 1
    assert pool.take(2) == [2, 1]
    assert pool.find(["kept"], 1) == [] and pool.num_cached == 0


def test_the_oldest_duplicate_is_found() -> None:
    """Equal contents are not merged; when a part of the oldest is reused the next one is found there."""
    pool = BlockPool(8)
    first, second = pool.take(3), pool.take(3)
    for table in (second, first):
        pool.register(table, ["a", "b", "c"], 0, 3)
    assert pool.find(["a", "b", "c"], 3) == second == [4, 5, 6]
    pool.release(second, 3)
    assert pool.take(3) == [7, 6, 5]
    assert pool.find(["a", "b", "c"], 3) == [4, 2, 3]


def test_a_shared_block_is_free_only_when_all_have_let_go() -> None:
    """And sharing a free block takes it out of the free queue."""
    pool = BlockPool(3)
    table = pool.take(1)
    pool.register(table, ["shared"], 0, 1)
    pool.share(table)
    pool.release(table, 1)
    assert pool.free_order == [2]
    pool.release(table, 1)
    assert pool.free_order == [2, 1]
    pool.share([1])
    assert pool.free_order == [2]


def test_a_shared_block_that_is_forgotten_is_reused_like_an_empty_one() -> None:
    """Its last reader leaves nothing in it that anybody could find."""
    pool = BlockPool(5)
    table = pool.take(2)
    pool.register(table, ["never computed"], 0, 1)
    pool.share(table[:1])
    pool.forget(table, 0, 1)
    pool.release(table[:1], 1)
    pool.release(table, 1)
    assert pool.free_order == [2, 1, 3, 4] and pool.num_cached == 0


def test_what_follows_a_forgotten_block_is_known_to_be_held_twice() -> None:
    """Whoever goes on behind a forgotten block may hold what a longer run holds in its middle."""
    pool = BlockPool(8)
    mine, other = pool.take(2), pool.take(3)
    pool.register(mine, ["a"], 0, 1)
    pool.forget(mine, 0, 1)
    assert pool.register(other, ["a", "b", "c"], 0, 3) == [(0, 3)]
    assert pool.register(mine, ["a", "b"], 1, 2) == []
    pool.check([mine, other])
    assert pool.find(["a", "b", "c"], 3) == other


def test_a_run_that_goes_on_is_found_as_far_as_it_was_asked_for() -> None:
    """Between a lookup and its admission the only holder may register more behind it."""
    pool = BlockPool(8)
    table = pool.take(3)
    pool.register(table, ["a", "b", "c"], 0, 2)
    found = pool.find(["a", "b", "d"], 3)
    pool.register(table, ["a", "b", "c"], 2, 3)
    pool.share(found)
    pool.check([table, found])
    pool.release(table, 3)
    assert found == [1, 2] and pool.free_order == [4, 5, 6, 7, 3]


def test_forgetting_everything_is_refused_while_any_block_is_held() -> None:
    """And then nothing is changed."""
    pool = BlockPool(4)
    table = pool.take(1)
    pool.register(table, ["key"], 0, 1)
    assert not pool.forget_all()
    assert pool.find(["key"], 1) == [1]
    pool.release(table, 1)
    order = pool.free_order
    assert pool.forget_all() and pool.free_order == order
    assert pool.find(["key"], 1) == [] and pool.num_cached == 0 and pool.num_free == 3


def test_taking_more_than_is_free_is_a_bug_that_raises() -> None:
    """Whoever takes has asked before."""
    pool = BlockPool(3)
    with pytest.raises(KeyError, match="3 blocks are asked for, 2 are free"):
        pool.take(3)
    assert pool.free_order == [1, 2]


class PlainPool:
    """The pool as its laws say it, block by block, in an ordered dictionary."""

    def __init__(self, num_blocks: int) -> None:
        self.free = OrderedDict.fromkeys(range(1, num_blocks))
        self.num_refs = Counter[int]()
        self.kept: set[int] = set()
        self.keys: dict[int, object] = {}
        self.holding: dict[object, list[int]] = {}

    def take(self, count: int) -> list[int]:
        blocks = [self.free.popitem(last=False)[0] for _ in range(count)]
        self.num_refs.update(blocks)
        self.kept -= set(blocks)
        self.forget([block for block in blocks if block in self.keys])
        return blocks

    def find(self, keys: list[object]) -> list[int]:
        return [self.holding[key][0] for key in takewhile(self.holding.__contains__, keys)]

    def share(self, blocks: list[int]) -> None:
        for block in blocks:
            self.free.pop(block, None)
        self.num_refs.update(blocks)

    def register(self, blocks: list[int], keys: list[object]) -> list[object]:
        new = [key for key in keys if key not in self.holding]
        for block, key in zip(blocks, keys, strict=True):
            self.keys[block] = key
            self.holding.setdefault(key, []).append(block)
        return new

    def forget(self, blocks: list[int]) -> None:
        for block in blocks:
            key = self.keys.pop(block)
            self.holding[key].remove(block)
            if not self.holding[key]:
                del self.holding[key]

    def release(self, table: list[int], num_known: int, num_kept: int) -> None:
        self.num_refs.subtract(table)
        free = [block for block in reversed(table) if not self.num_refs[block]]
        kept = [block for block in free if block in self.keys or block in table[num_known:num_kept]]
        self.kept = self.kept - set(free) | set(kept)
        self.free.update(dict.fromkeys(kept))
        for block in reversed([block for block in free if block not in kept]):
            self.free[block] = None
            self.free.move_to_end(block, last=False)


@dataclass
class Holder:
    """A request as the pool knows it."""

    table: list[int]
    keys: list[object]
    num_known: int


def path(rng: random.Random, size: int) -> list[object]:
    """A prompt's keys: each stands for all before it, too, and many prompts begin alike."""
    turns = accumulate((str(rng.randrange(2) // rng.randint(1, 2)) for _ in range(size)), initial="")
    return [*turns][1:]


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("num_blocks", [4, 10, 40])
@pytest.mark.parametrize("seed", range(12))
def test_runs_are_reused_found_and_forgotten_as_single_blocks_are(seed: int, num_blocks: int) -> None:
    """Whatever happens: the same blocks in the same order, the same news, and every law after each turn."""
    rng = random.Random(seed)
    pool, plain = BlockPool(num_blocks), PlainPool(num_blocks)
    holders: list[Holder] = []
    for turn in range(600):
        holder = rng.choice(holders) if holders else Holder([], [], 0)
        match rng.randrange(6):
            case 0 | 1 if pool.num_free:
                keys = path(rng, rng.randint(1, num_blocks // 2))
                found = pool.find(keys, rng.choice([len(keys), rng.randint(0, len(keys))]))
                assert found == plain.find(keys)[: len(found)]
                pool.share(found)
                plain.share(found)
                count = rng.randint(0, min(len(keys) - len(found), pool.num_free))
                taken = pool.take(count)
                assert taken == plain.take(count), turn
                holders.append(Holder(found + taken, keys, len(found)))
            case 2 | 3 if holder.num_known < len(holder.table):
                start, end = holder.num_known, rng.randint(holder.num_known + 1, len(holder.table))
                added = pool.register(holder.table, holder.keys, start, end)
                new = [key for first, stop in added for key in holder.keys[first:stop]]
                assert new == plain.register(holder.table[start:end], holder.keys[start:end])
                holder.num_known = end
            case 4 if holders:
                holders.remove(holder)
                num_kept = rng.randint(0, len(holder.table))
                pool.release(holder.table, holder.num_known, num_kept)
                plain.release(holder.table, holder.num_known, num_kept)
            case 5 if rng.random() < 0.3 and holder.num_known:
                start = rng.randrange(holder.num_known)
                if all(block in plain.keys for block in holder.table[start : holder.num_known]):
                    pool.forget(holder.table, start, holder.num_known)
                    plain.forget(holder.table[start : holder.num_known])
        pool.check([each.table for each in holders])
        assert pool.free_order == list(plain.free), turn
        assert pool.num_free == len(plain.free)
        held = {block for each in holders for block in each.table}
        assert pool.num_cached == len(plain.kept & set(plain.free)) + len(held & set(plain.keys))


def test_the_check_finds_a_block_that_leaked() -> None:
    """A law that cannot fail is no law."""
    pool = BlockPool(4)
    pool.take(1)
    with pytest.raises(AssertionError, match=r"neither held nor free: \[1\]"):
        pool.check([])


@pytest.mark.parametrize("damage", ["twice", "null", "counted", "held", "unfound", "unknown", "shifted"])
def test_the_check_finds_each_kind_of_damage(damage: str) -> None:
    """To the free queue, to its count, and to the runs that hold something."""
    pool = BlockPool(6)
    table = pool.take(3)
    pool.register(table, ["a", "b"], 0, 2)
    pool.release(table, 2)
    pool.check([])
    (run,) = pool._free
    match damage:
        case "twice":
            pool._empty.append(5)
        case "null":
            pool._empty[0] = 0
        case "counted":
            pool.num_free += 1
        case "held":
            run.num_holders += 1
        case "unfound":
            pool._copies.clear()
        case "unknown":
            run.keys = []
        case "shifted":
            pool._runs[2] = pool._runs.pop(1)
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
            pool.release(pool.take(8), 0)
        return time.perf_counter() - start

    small = min(round_s(2_000) for _ in range(5))
    large = min(round_s(200_000) for _ in range(5))
    assert large < 20 * small
