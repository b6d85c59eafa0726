"""Pool of KV blocks: holders, order of reuse and contents of each block.

Law: every block but the null block 0 is either free (in the free queue once) or held. Releasing a block keeps
its contents; only reuse forgets them. The order of reuse is vLLM V1's, as the golden logs show.

Blocks that are registered, shared, released and reused together are one `BlockRun`. A run is split when part
of it has another fate, so that costs follow the number of runs: a prompt that shares nothing is one run,
however long, and its block ids are only copied.

The free queue is a stack of blocks without contents, and behind it the free runs. Both are reused from their
last block on, so that prefixes survive longest. Of 8 blocks, with `(…)` for a run:

                                              stack, top last   free runs   held by A     by B
    at first                                  7 6 5 4 3 2 1
    A takes four, registers three as a, b, c  7 6 5                         (1 2 3) 4
    A lets go                                 7 6 5 4           (1 2 3)
    B finds and shares a, b of a, b, x        7 6 5 4           (3)                       (1 2)
    B takes one and registers it as x         7 6 5             (3)                       (1 2 4)
    A takes four: block 3 forgets c                                         5 6 7 3       (1 2 4)

A key in several runs is found in the oldest. Runs that share one key share all of them: they are copies, and
are split together.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from sundog.actors.core.blocks.kv_events import KvChanges
from sundog.actors.core.blocks.runs import BlockNumbers, BlockRun, FreeRuns, Key, OwnKey

NULL = 0
FEW: Final = 6
"""Number of blocks up to which taking one after another is faster than a slice."""


@lru_cache(maxsize=1)
def _descending(num_blocks: int) -> tuple[int, ...]:
    """Return all blocks but the null block in descending order, cached so that pools of a fleet share the
    objects.
    """
    return tuple(range(num_blocks - 1, NULL, -1))


class BlockPool:
    """Pool of the blocks 1 to `num_blocks - 1`; block 0 is the null block, which is never allocated."""

    __slots__ = ("_copies", "_empty", "_free", "_runs", "changes", "num_blocks", "num_free", "states")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_free = num_blocks - 1
        self._empty = list(_descending(num_blocks))
        self._free = FreeRuns()
        self._runs: dict[int, BlockRun] = {}
        """Runs that are held or in the cache, by their first block."""
        self._copies: dict[Key, list[BlockRun]] = {}
        """Runs with the same keys, oldest first, by the first of these keys."""
        self.changes: KvChanges | None = None
        """Changes of the keys in the cache; None if nothing reads them."""
        self.states: set[Key] = set()
        """Keys of cached blocks after which the state of linear attention was kept."""

    @property
    def free_order(self) -> list[int]:
        """Free blocks in the order of their reuse. O(blocks)."""
        return self._empty[::-1] + [block for run in self._free for block in reversed(run.blocks)]

    @property
    def num_cached(self) -> int:
        """Number of blocks whose contents a lookup, or their last owner, could find again. O(runs)"""
        held = [run for run in self._runs.values() if run.keys and run.num_holders]
        return sum([len(run.blocks) for run in [*self._free, *held]])

    def take(self, count: int) -> list[int]:
        """Take the next `count` free blocks and forget their contents; at least `count` must be free."""
        if count > self.num_free:
            raise KeyError(f"{count} blocks are asked for, {self.num_free} are free")
        self.num_free -= count
        if not (count and self._empty):
            return self._reuse(count)
        blocks = self._empty[-count:]
        del self._empty[-count:]
        missing = count - len(blocks)
        if count > 1:
            blocks.reverse()
        return blocks + self._reuse(missing) if missing else blocks

    def _reuse(self, count: int) -> list[int]:
        """Take blocks from the ends of the runs that are reused next."""
        blocks: list[int] = []
        while count > 0:
            run = self._free.first
            num_blocks = len(run.blocks)
            if count <= FEW and num_blocks > count and not run.keys:  # the next blocks of decodes, most often
                own: BlockNumbers = run.blocks
                while count:
                    blocks.append(own.pop())
                    count -= 1
                return blocks
            if run.keys:
                if num_blocks > count:
                    self._split(run, num_blocks - count)
                    run, num_blocks = self._free.first, count
                self._forget(run, run.keys[::-1])
                del self._runs[run.blocks[0]]
            if num_blocks > count:
                taken = run.blocks[-count:]
                del run.blocks[-count:]
                num_blocks = count
            else:
                taken = run.blocks
                self._free.remove(run)
            if num_blocks > 1:  # A slice that goes backwards would take four times as long.
                taken.reverse()
            blocks = blocks + taken if blocks else taken
            count -= num_blocks
        return blocks

    def find(self, keys: list[Key], most: int) -> list[int]:
        """Return up to `most` blocks that hold the first keys; of several copies the oldest. O(runs)"""
        blocks: list[int] = []
        while (start := len(blocks)) < most:
            copies = self._copies.get(keys[start])
            if copies is None:
                break
            blocks += copies[0].blocks[: copies[0].num_equal(keys, start, most)]
        return blocks

    def runs(self, table: list[int], start: int, end: int) -> list[BlockRun]:
        """Return the runs that make up blocks of a table, all of them found or registered. O(runs)

        A run that is only partly in the range is split.
        """
        runs = []
        while start < end:
            run = self._runs[table[start]]
            stop = start + len(run.blocks)
            if stop > end or table[stop - 1] != run.blocks[-1]:
                pairs = zip(run.blocks, table[start:end], strict=False)
                stop = start + sum([its == block for its, block in pairs])
                self._split(run, stop - start)
            runs.append(run)
            start = stop
        return runs

    def share(self, blocks: list[int]) -> None:
        """Add a holder to blocks that were found; free ones leave the free queue."""
        for run in self.runs(blocks, 0, len(blocks)):
            if not run.num_holders:
                self._free.remove(run)
                self.num_free -= len(run.blocks)
            run.num_holders += 1

    def release(self, table: list[int], num_known: int, num_kept: int = 0) -> None:
        """Release a request's blocks, last first, so that prefixes survive longest.

        The first `num_known` were found or registered; those from there to `num_kept` have contents that no
        other request could find. Free blocks with contents join the back of the queue, others its front.
        """
        kept, empty = table[num_known:num_kept], table[max(num_known, num_kept) :]
        self.num_free += len(kept) + len(empty)
        if kept:
            self._free.add(BlockRun(kept, [], 0))
        for run in reversed(self.runs(table, 0, num_known)):
            run.num_holders -= 1
            if not run.num_holders:
                self.num_free += len(run.blocks)
                if run.keys:
                    self._free.add(run)
                else:
                    del self._runs[run.blocks[0]]
                    empty = run.blocks + empty
        self._empty += empty

    def register(self, table: list[int], keys: list[Key], start: int, end: int) -> list[tuple[int, int]]:
        """Register the blocks of a table from `start` to before `end` under their keys.

        They must have one holder, and the blocks before them must be found or registered. Returns the ranges
        of positions whose keys no block had before. O(runs), and one lookup per key.
        """
        last = self.runs(table, 0, start)[-1] if start else None
        if last is not None and not last.keys:
            self._cut_before(keys[start])
        added = []
        while start < end:
            copies = self._copies.get(keys[start])
            if copies is not None:
                stop = start + copies[0].num_equal(keys, start, end)
                if stop - start < len(copies[0].keys):
                    self._split(copies[0], stop - start)
            else:
                stop = self._end_of_unknown(keys, start, end)
                added.append((start, stop))
            if copies is None and last is not None and self._is_alone(last, keys[start]):
                last.blocks += table[start:stop]
                last.keys += keys[start:stop]
            else:
                last = self._runs[table[start]] = BlockRun(table[start:stop], keys[start:stop], 1)
                self._copies.setdefault(keys[start], []).append(last)
            start = stop
        if self.changes is not None:
            self.changes.stores([key for first, stop in added for key in keys[first:stop]])
        return added

    def _end_of_unknown(self, keys: list[Key], start: int, end: int) -> int:
        """Return the position behind `start` of the first key that begins a known run."""
        if self._copies.keys().isdisjoint(keys[start:end]):
            return end
        return next(index for index in range(start, end) if keys[index] in self._copies)

    def _is_alone(self, run: BlockRun, key: Key) -> bool:
        """Return whether the run has one holder, no copies, and can be extended by the key."""
        is_alone = run.num_holders == 1 and bool(run.keys) and len(self._copies[run.keys[0]]) == 1
        return is_alone and isinstance(run.keys[0], OwnKey) is isinstance(key, OwnKey)

    def _cut_before(self, key: Key) -> None:
        """Split the run that contains the key, so that a run begins with it. O(runs)"""
        for copies in list(self._copies.values()):
            if key in copies[0].keys[1:]:
                self._split(copies[0], copies[0].keys.index(key))

    def _split(self, run: BlockRun, start: int) -> None:
        rests = []
        for copy in self._copies[run.keys[0]]:
            rest = BlockRun(copy.blocks[start:], copy.keys[start:], copy.num_holders)
            del copy.blocks[start:], copy.keys[start:]
            self._runs[rest.blocks[0]] = rest
            if not copy.num_holders:
                self._free.insert(rest, copy)
            rests.append(rest)
        self._copies[rests[0].keys[0]] = rests

    def forget(self, table: list[int], start: int, end: int) -> None:
        """Remove registered blocks of a table from the cache."""
        self.runs(table, 0, start)
        for run in self.runs(table, start, end):
            self._forget(run, run.keys)
            run.keys = []

    def _forget(self, run: BlockRun, keys: list[Key]) -> None:
        """Remove the run from lookups; if it has no copy, record its keys, in order."""
        copies = self._copies[run.keys[0]]
        copies.remove(run)
        if not copies:
            del self._copies[run.keys[0]]
            if self.states:
                self.states.difference_update(keys)
            if self.changes is not None:
                self.changes.forgets(keys)

    def forget_all(self) -> bool:
        """Clear the prefix cache; do nothing and return False while any block is held."""
        if self.num_free != self.num_blocks - 1:
            return False
        if self.changes is not None:
            self.changes.forgets_all([key for copies in self._copies.values() for key in copies[0].keys])
        self._empty = self.free_order[::-1]
        self._free = FreeRuns()
        self._runs.clear()
        self._copies.clear()
        self.states.clear()
        return True

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Check every invariant against the block tables of all requests. O(blocks)."""
        held = Counter(block for table in tables for block in table)
        # A block in no run is not cached, and has the one holder that it was taken for.
        num_holders = {block: run.num_holders for run in self._runs.values() for block in run.blocks}
        wrong = [block for block in held if held[block] != num_holders.get(block, 1)]
        wrong += [block for block, count in num_holders.items() if count != held[block]]
        if wrong:
            raise AssertionError(f"blocks whose reference counts are wrong: {sorted(wrong)[:10]}")
        order, free = self.free_order, set(range(1, self.num_blocks)).difference(held)
        if leaked := free.difference(order):
            raise AssertionError(f"blocks that are neither held nor free: {sorted(leaked)[:10]}")
        if len(order) != len(free) or len(order) != self.num_free or NULL in held:
            raise AssertionError("the free queue is not the set of blocks that no request holds")
        unheld = {run.blocks[0]: run for run in self._free if run.keys}
        num_found = sum(len(copies) for copies in self._copies.values())
        for first, run in self._runs.items():
            copies = self._copies.get(run.keys[0], []) if run.keys else [run]
            is_whole = run.blocks[0] == first and run in copies and run.keys == copies[0].keys
            # Either it is held, or it is in the free queue, and never both.
            is_placed = (unheld.pop(first, None) is run) is not bool(run.num_holders)
            num_found -= bool(run.keys)
            if not (is_whole and is_placed and len(run.keys) in (0, len(run.blocks))):
                raise AssertionError("the cache does not agree with the blocks' keys")
        if unheld or num_found:
            raise AssertionError("the cache does not agree with the blocks' keys")
