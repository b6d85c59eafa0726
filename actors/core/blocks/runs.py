"""Runs of blocks, and the queue of those that no request holds."""

from collections.abc import Iterator

Key = object
"""The key of a block: it stands for its tokens and all before them; equal keys are equal beginnings."""


class OwnKey:
    """A key that one request alone has: no other lookup finds what it stands for."""

    __slots__ = ()


class BlockRun:
    """Blocks that follow each other in a table, and are held, found, let go and reused together.

    `keys` say what each of them holds; without any they are not found. A run that no request holds is in a
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
    """The order in which free runs are reused: the one that was let go first comes first.

    A linked ring, so that a run is shared out of the middle, or becomes two, at no cost.
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
        """The next run to be reused; there must be one."""
        run = self._end.behind
        assert run is not None and run is not self._end, "no run is free"
        return run

    def add(self, run: BlockRun) -> None:
        """Add a run that no request holds any more, to be reused last of all."""
        self.insert(run, self._end)

    def insert(self, run: BlockRun, behind: BlockRun) -> None:
        """Add a run to be reused just before the one `behind` it."""
        before = behind.before
        assert before is not None, "it is in no queue"
        run.before, run.behind = before, behind
        before.behind = behind.before = run

    def remove(self, run: BlockRun) -> None:
        """Take a run out, wherever it is."""
        before, behind = run.before, run.behind
        assert before is not None and behind is not None, "it is in no queue"
        before.behind, behind.before = behind, before
        run.before = run.behind = None
