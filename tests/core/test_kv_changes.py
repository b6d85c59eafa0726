"""KV events of a prefix cache, and its runs of blocks."""

import pytest

from sundog.actors.core.blocks.block_pool import BlockPool
from sundog.actors.core.blocks.kv_events import KvBlocks, KvChanges, KvEvents
from sundog.actors.core.blocks.runs import BlockRun, FreeRuns, OwnKey


def test_changes_are_taken_once_and_say_what_is_there_now() -> None:
    """A key that came and went in between counts as gone; one that went and came again as there."""
    changes = KvChanges()
    changes.stores(["a", "b", "c"])
    changes.forgets(["b"])
    changes.forgets(["old"])
    changes.stores(["old"])
    assert changes.take() == KvEvents(("a", "c", "old"), ("b",))
    assert changes.take() is None


def test_keys_that_one_request_alone_has_are_no_news() -> None:
    """Whether they are stored, reused or forgotten with all others."""
    changes = KvChanges(publishes=True)
    changes.stores([OwnKey(), OwnKey()])
    changes.forgets([OwnKey()])
    assert changes.take() is None
    changes.forgets_all([OwnKey(), "a"])
    assert changes.take() == KvEvents((), ("a",), (KvBlocks(False),))


@pytest.mark.parametrize("publishes", [False, True])
def test_what_is_forgotten_is_published_key_by_key_and_only_if_asked_for(publishes: bool) -> None:
    """In the order in which blocks were reused; the whole cache at once is one event without keys."""
    changes = KvChanges(publishes)
    changes.forgets(["b", "a"])
    changes.forgets_all(["c"])
    told = (KvBlocks(False, ("b",)), KvBlocks(False, ("a",)), KvBlocks(False))
    assert changes.take() == KvEvents((), ("b", "a", "c"), told if publishes else ())


def test_an_empty_cache_that_is_reset_is_news_where_changes_are_published() -> None:
    """As in vLLM, which says that all blocks were cleared."""
    changes = KvChanges(publishes=True)
    changes.forgets_all([])
    assert changes.take() == KvEvents((), (), (KvBlocks(False),))


def test_free_runs_are_reused_in_the_order_in_which_they_were_let_go() -> None:
    """One may go between two others, or leave from anywhere."""
    runs = {name: BlockRun([number], [name], 0) for number, name in enumerate("abcd")}
    free = FreeRuns()
    for name in "abc":
        free.add(runs[name])
    assert list(free) == [runs["a"], runs["b"], runs["c"]] and free.first is runs["a"]
    free.insert(runs["d"], runs["b"])
    assert list(free) == [runs[name] for name in "adbc"]
    free.remove(runs["b"])
    free.remove(runs["a"])
    assert list(free) == [runs["d"], runs["c"]] and free.first is runs["d"]
    free.add(runs["a"])
    assert list(free) == [runs[name] for name in "dca"]
    for name in "cda":
        free.remove(runs[name])
    with pytest.raises(AssertionError, match="no run is free"):
        _ = free.first


@pytest.mark.parametrize(
    ("asked", "start", "end", "num_equal"),
    [
        ("abc", 0, 3, 3),
        ("abcd", 0, 4, 3),
        ("abx", 0, 3, 2),
        ("xbc", 0, 3, 0),
        ("abc", 0, 2, 2),
        ("xabc", 1, 4, 3),
        ("xabz", 1, 4, 2),
        ("ab", 0, 2, 2),
    ],
)
def test_a_run_equals_keys_as_far_as_each_is_the_same(
    asked: str, start: int, end: int, num_equal: int
) -> None:
    """From `start` to before `end`, and no further than the run goes."""
    assert BlockRun([1, 2, 3], list("abc"), 1).num_equal(list(asked), start, end) == num_equal


def test_reused_blocks_are_told_in_the_order_in_which_they_are_reused() -> None:
    """The tail of a prefix first, whether all of it is reused or a part."""
    pool = BlockPool(4)
    table = pool.take(3)
    pool.register(table, ["a", "b", "c"], 0, 3)
    pool.changes = KvChanges(publishes=True)
    pool.release(table, 3)
    assert pool.take(1) == [3]
    assert pool.changes.take() == KvEvents((), ("c",), (KvBlocks(False, ("c",)),))
    assert pool.take(2) == [2, 1]
    told = (KvBlocks(False, ("b",)), KvBlocks(False, ("a",)))
    assert pool.changes.take() == KvEvents((), ("b", "a"), told)


def test_what_another_block_holds_already_is_no_news() -> None:
    """A second request with the same beginning stores its last block alone; nothing goes while one stays."""
    pool = BlockPool(8)
    pool.changes = KvChanges()
    first, second = pool.take(2), pool.take(3)
    pool.register(first, ["a", "b"], 0, 2)
    assert pool.changes.take() == KvEvents(("a", "b"), ())
    pool.register(second, ["a", "b", "c"], 0, 3)
    assert pool.changes.take() == KvEvents(("c",), ())
    pool.release(first, 2)
    assert pool.take(4) == [6, 7, 2, 1]
    assert pool.changes.take() is None, "the second holds them, too"
