"""Runs of blocks, and the queue of runs without a holder."""

from collections.abc import Iterator
from typing import Any

BlockNumbers = list[Any]
"""Numbers of blocks that are only passed on: of an `int`, compiled code would make each anew."""
Key = object
"""Key of a block: a hash of its tokens and all before them. Equal keys mean equal prefixes."""


class OwnKey:
    """Key that belongs to one request, so that no other lookup finds its block."""

    __slots__ = ()


class BlockRun:
    """Consecutive blocks of a table that are held, found, released and reused together.

    `keys` are the blocks' keys, empty if they are not in the cache. A run without a holder is in a linked
    queue, between `before` and `behind`.
    """

    __slots__ = ("before", "behind", "blocks", "keys", "num_holders")

    def __init__(self, blocks: list[int], keys: list[Key], num_holders: int) -> None:
        self.blocks = blocks
        self.keys = keys
        self.num_holders = num_holders
        self.before: BlockRun | None = None
        self.behind: BlockRun | None = None

    def num_equal(self, keys: list[Key], start: int, end: int) -> int:
        """Return how many of the run's first keys equal those from `start` to before `end`. O(that number)"""
        own = self.keys
        asked = keys[start : min(start + len(own), end)]
        if asked == own:
            return len(own)
        for count, key in enumerate(asked):
            if key != own[count]:
                return count
        return len(asked)


class FreeRuns:
    """Queue of free runs in the order of reuse, first released first.

    A linked ring, so that removing a run from the middle, or splitting one, is O(1).
    """

    __slots__ = ("_end",)

    def __init__(self) -> None:
        self._end = BlockRun([], [], 0)
        self._end.before = self._end.behind = self._end

    def __iter__(self) -> Iterator[BlockRun]:
        run = self._end.behind
        while run is not None and run is not self._end:
            yield run
            run = run.behind

    @property
    def first(self) -> BlockRun:
        """Next run to reuse; there must be one."""
        run = self._end.behind
        assert run is not None and run is not self._end, "no run is free"
        return run

    def add(self, run: BlockRun) -> None:
        """Append a run that lost its last holder; it is reused last."""
        self.insert(run, self._end)

    def insert(self, run: BlockRun, behind: BlockRun) -> None:
        """Insert a run before the run `behind`."""
        before = behind.before
        assert before is not None, "it is in no queue"
        run.before, run.behind = before, behind
        before.behind = behind.before = run

    def remove(self, run: BlockRun) -> None:
        """Remove a run from any place in the queue."""
        before, behind = run.before, run.behind
        assert before is not None and behind is not None, "it is in no queue"
        before.behind, behind.before = behind, before
        run.before = run.behind = None
