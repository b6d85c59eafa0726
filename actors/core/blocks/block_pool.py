"""The pool of KV blocks: who holds them, the order of reuse, and what each block holds.

Law: every block but the null block 0 is either free (in the free queue once) or held. Freeing never forgets
what a block holds; only reuse does. Every operation costs O(1) per block, averaged over a run, and one slice
where nothing is shared. The order of reuse is vLLM V1's, as the golden logs show it.

Only what can be found is written down by block: its key, its readers while requests share it, and its
place in the free queue. Any other block has one holder or none, which its holder's table says.

The free queue is an array with a head: what is taken or put back at the front only moves the head. From
`_kept_from` on lie the blocks that hold something, before it the empty ones. A block that is shared out of
the middle leaves the null block in its place, which is skipped when the head comes to it. Of 8 blocks, with
`|` for the head and `:` for `_kept_from`:

    at first                                               | 1 2 3 4 5 6 7 :
    A takes three, keys "a" and "b" are kept in 1 and 2    1 2 3 | 4 5 6 7 :
    A releases: 3 is empty, 2 and 1 are kept, tail first   1 2 | 3 4 5 6 7 : 2 1
    B finds "a" and shares block 1                         1 2 | 3 4 5 6 7 : 2 0
    B takes six: block 2 forgets "b", the hole is left     1 2 3 4 5 6 7 : 2 | 0
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from actors.core.blocks.kv_events import KvChanges

Key = object
NULL = 0


class BlockPool:
    """Blocks 1 to `num_blocks - 1`; block 0 is the null block, which is never given out."""

    __slots__ = (
        "_cached",
        "_head",
        "_kept_from",
        "_keys",
        "_num_holes",
        "_place",
        "_queue",
        "_readers",
        "changes",
        "num_blocks",
        "num_free",
    )

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_free = num_blocks - 1
        self._queue = list(range(1, num_blocks))
        self._head = 0
        self._kept_from = num_blocks - 1
        self._num_holes = 0
        self._keys: dict[int, Key] = {}
        self._readers: dict[int, int] = {}
        """How many requests hold a block that has, or had while they took it, a key for all."""
        self._place: dict[int, int] = {}
        """Where the free blocks lie that have a key."""
        self._cached: dict[Key, dict[int, None]] = {}
        self.changes: KvChanges | None = None
        """What can be found anew or no more, if anybody asks."""

    @property
    def free_order(self) -> list[int]:
        """The free blocks, the next to be reused first. O(blocks)."""
        free = self._queue[self._head :]
        return [block for block in free if block != NULL] if self._num_holes else free

    @property
    def num_cached(self) -> int:
        """Blocks that hold what a lookup, or their last owner, could have found again. O(blocks)"""
        kept = self._queue[max(self._head, self._kept_from) :]
        held = [block for block in self._keys if block not in self._place]
        return len(kept) - kept.count(NULL) + len(held)

    def take(self, count: int) -> list[int]:
        """The next `count` free blocks, which forget what they held; at least `count` must be free."""
        if count > self.num_free:
            raise KeyError(f"{count} blocks are asked for, {self.num_free} are free")
        self.num_free -= count
        start = self._head
        self._head = start + count
        blocks = self._queue[start : self._head]
        if self._num_holes:
            blocks = self._without_holes(blocks, count)
        if self._place:
            for block in blocks:
                if block in self._place:
                    del self._place[block]
                    self.forget(block)
        return blocks

    def _without_holes(self, blocks: list[int], count: int) -> list[int]:
        """Replace the holes in `blocks` with further free blocks; return `count` blocks."""
        while NULL in blocks:
            blocks = [block for block in blocks if block != NULL]
            missing, start = count - len(blocks), self._head
            self._num_holes -= missing
            self._head = start + missing
            blocks += self._queue[start : self._head]
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Hold blocks once more that were found; free ones leave the free queue."""
        for block in blocks:
            place = self._place.pop(block, None)
            if place is not None:
                self._queue[place] = NULL
                self._num_holes += 1
                self.num_free -= 1
            if block in self._readers:
                self._readers[block] += 1

    def release(self, table: list[int], num_kept: int = 0, num_known: int | None = None) -> None:
        """Release a request's blocks, tail first, so that prefixes survive longest.

        Blocks that no request holds any more join the free queue: empty ones at its front, with the tail
        block first, those that hold something at its back. These are the first `num_kept`, and all that
        have a key. Only the first `num_known` can have a key or readers; by default any.
        """
        if num_known is None:
            num_known = len(table)
        kept, empty = table[num_known:num_kept], table[max(num_known, num_kept) :]
        kept.reverse()
        empty.reverse()
        if num_known:
            self._let_go(table[:num_known], num_kept, kept, empty)
        self.num_free += len(kept) + len(empty)
        self._queue += kept
        if empty:
            self._put_in_front(empty)
        if len(self._queue) > 4 * self.num_blocks:
            self._tidy()

    def _let_go(self, table: list[int], num_kept: int, kept: list[int], empty: list[int]) -> None:
        """Add the blocks that no request holds any more: those that hold something, and empty ones."""
        keys, readers, end = self._keys, self._readers, len(self._queue)
        for index in range(len(table) - 1, -1, -1):
            block = table[index]
            num_readers = readers.get(block)
            if num_readers is not None:
                readers[block] = num_readers - 1
                if num_readers > 1:
                    continue
                if block not in keys:
                    del readers[block]
                    empty.append(block)
                    continue
            if block in keys:
                self._place[block] = end + len(kept)
            elif index >= num_kept:
                empty.append(block)
                continue
            kept.append(block)

    def _put_in_front(self, blocks: list[int]) -> None:
        if self._head < len(blocks):
            self._tidy()
        end = self._head
        self._kept_from = max(self._kept_from, end)
        self._head = end - len(blocks)
        self._queue[self._head : end] = blocks

    def _tidy(self) -> None:
        """Drop what was taken or left its place, and make room for every block in front. O(blocks)."""
        num_empty = max(self._kept_from - self._head, 0)
        free = self.free_order
        self._head = self.num_blocks
        self._kept_from = self._head + num_empty
        self._num_holes = 0
        self._queue = [NULL] * self.num_blocks + free
        if self._place:
            for place, block in enumerate(free, self.num_blocks):
                if block in self._place:
                    self._place[block] = place

    def register(self, block: int, key: Key) -> None:
        """Remember that a held block holds the tokens that `key` stands for."""
        self._keys[block] = key
        if self.changes is not None and key not in self._cached:
            self.changes.is_stored[key] = True
        self._cached.setdefault(key, {})[block] = None
        self._readers.setdefault(block, 1)

    def own(self, blocks: Iterable[int], owner: object) -> None:
        """Remember that held blocks hold tokens that only `owner` can have.

        No lookup finds them: the owner remembers where they are, and asks whether they still are.
        """
        for block in blocks:
            self._keys[block] = owner

    def is_owned(self, block: int, owner: object) -> bool:
        """True while the block still holds what `owner` left in it."""
        return self._keys.get(block) is owner

    def find(self, key: Key) -> int | None:
        """The oldest block that holds `key`."""
        blocks = self._cached.get(key)
        return None if blocks is None else next(iter(blocks))

    def is_free(self, block: int) -> bool:
        """True if no request holds a block that was found."""
        return block in self._place

    def num_refs(self, block: int) -> int:
        """Return the number of requests that hold the block, of which at least one does."""
        return self._readers.get(block, 1)

    def forget(self, block: int) -> None:
        """Forget the key and the content of a block: it is no longer found."""
        key = self._keys.pop(block)
        blocks = self._cached.get(key)
        if blocks is None:
            return
        if len(blocks) == 1:
            del self._cached[key]
            if self.changes is not None:
                self.changes.forgets(key)
        else:
            del blocks[block]
        if self._readers[block] <= 1:
            del self._readers[block]

    def forget_all(self) -> bool:
        """Forget all cached prefixes; does nothing and returns False while any block is held."""
        if self.num_free != self.num_blocks - 1:
            return False
        self._tidy()
        if self.changes is not None:
            self.changes.forgets_all(list(self._cached))
        self._cached.clear()
        self._keys.clear()
        self._readers.clear()
        self._place.clear()
        self._kept_from = len(self._queue)
        return True

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Verify every invariant against the block tables of all requests. O(blocks)."""
        held = Counter(block for table in tables for block in table)
        wrong = [block for block in held if held[block] != self._readers.get(block, 1)]
        wrong += [block for block, count in self._readers.items() if count != held[block]]
        if wrong:
            raise AssertionError(f"blocks whose reference counts are wrong: {sorted(wrong)[:10]}")
        order = self.free_order
        queued, free = set(order), set(range(1, self.num_blocks))
        free.difference_update(held)
        if leaked := free - queued:
            raise AssertionError(f"blocks that are neither held nor free: {sorted(leaked)[:10]}")
        if len(free) != len(queued) or len(order) != len(free) or len(free) != self.num_free or NULL in held:
            raise AssertionError("the free queue is not the set of blocks that no request holds")
        cached = {block: key for key, blocks in self._cached.items() for block in blocks}
        found = {block: key for block, key in self._keys.items() if key in self._cached}
        places = {block: self._place.get(block, -1) for block in self._keys if block not in held}
        lie = [place >= self._head and self._queue[place] == block for block, place in places.items()]
        if cached != found or places != self._place or not all(lie):
            raise AssertionError("the cache does not agree with the blocks' keys")
