"""The pool of KV blocks: reference counts, the order of reuse, and what each block holds.

Law: every block but the null block 0 is either free (reference count 0, in the free queue once)
or held (count above 0). Freeing never forgets what a block holds; only reuse does. Every
operation costs O(1) per block, averaged over a run. The order of reuse is vLLM V1's, as the golden
logs show it.

The free queue is an array with a head: what is taken or put back at the front only moves the head.
A block that is shared out of the middle leaves the null block in its place, which is skipped when
the head comes to it. `_place` knows where each free block lies whose contents somebody may find;
no other one is ever shared.
"""

from collections.abc import Iterable, Sequence

Key = object
NULL = 0


class BlockPool:
    """Blocks 1 to `num_blocks - 1`; block 0 is the null block, which is never given out."""

    __slots__ = (
        "_cached",
        "_head",
        "_keys",
        "_num_refs",
        "_place",
        "_queue",
        "num_blocks",
        "num_cached",
        "num_free",
    )

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_free = num_blocks - 1
        self._queue = list(range(1, num_blocks))
        self._head = 0
        self._place = [0] * num_blocks
        self._num_refs = [0] * num_blocks
        self._keys: list[Key | None] = [None] * num_blocks
        self._cached: dict[Key, dict[int, None]] = {}
        self.num_cached = 0
        """Blocks whose contents a lookup, or their owner, may find."""

    @property
    def free_order(self) -> list[int]:
        """The free blocks, the next to be reused first. O(blocks)."""
        return [block for block in self._queue[self._head :] if block != NULL]

    def take(self, count: int) -> list[int]:
        """The next `count` free blocks, which forget what they held; at least `count` must be free."""
        blocks = self._next(count)
        refs, keys, cached = self._num_refs, self._keys, self._cached
        for block in blocks:
            refs[block] = 1
            key = keys[block]
            if key is not None:
                if key in cached:
                    self.forget(block)
                else:
                    keys[block] = None
                    self.num_cached -= 1
        return blocks

    def _next(self, count: int) -> list[int]:
        """Move the head past the next `count` free blocks."""
        if count > self.num_free:
            raise KeyError(f"{count} blocks are asked for, {self.num_free} are free")
        self.num_free -= count
        queue, start = self._queue, self._head
        self._head = end = start + count
        blocks = queue[start:end]
        while NULL in blocks:
            blocks = [block for block in blocks if block != NULL]
            start, end = end, end + count - len(blocks)
            self._head = end
            blocks += queue[start:end]
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Hold cached blocks once more; free ones leave the free queue."""
        for block in blocks:
            if self._num_refs[block] == 0:
                self._queue[self._place[block]] = NULL
                self.num_free -= 1
            self._num_refs[block] += 1

    def release(self, table: Sequence[int]) -> None:
        """Release a request's blocks, tail first, so that prefixes survive longest.

        Blocks that no request holds any more join the free queue: empty ones at its front, with the tail
        block first, cached ones at its back.
        """
        refs, keys, place, queue = self._num_refs, self._keys, self._place, self._queue
        empty: list[int] = []
        for block in reversed(table):
            num_refs = refs[block] - 1
            refs[block] = num_refs
            if num_refs == 0:
                self.num_free += 1
                if keys[block] is None:
                    empty.append(block)
                else:
                    place[block] = len(queue)
                    queue.append(block)
        if empty:
            self._put_in_front(empty)
        if len(queue) > 4 * self.num_blocks:
            self._tidy()

    def _put_in_front(self, blocks: list[int]) -> None:
        if self._head < len(blocks):
            self._tidy()
        end = self._head
        self._head = end - len(blocks)
        self._queue[self._head : end] = blocks

    def _tidy(self) -> None:
        """Drop what was taken or left its place, and make room for every block in front. O(blocks)."""
        free = self.free_order
        self._head = self.num_blocks
        self._queue = [NULL] * self.num_blocks + free
        for place, block in enumerate(free, self.num_blocks):
            self._place[block] = place

    def register(self, block: int, key: Key) -> None:
        """Remember that a held block holds the tokens that `key` stands for."""
        self._keys[block] = key
        self._cached.setdefault(key, {})[block] = None
        self.num_cached += 1

    def own(self, blocks: Sequence[int], owner: object) -> None:
        """Remember that held blocks hold tokens that only `owner` can have.

        No lookup finds them: the owner remembers where they are, and asks whether they still are.
        """
        keys = self._keys
        for block in blocks:
            if keys[block] is not owner:
                keys[block] = owner
                self.num_cached += 1

    def is_owned(self, block: int, owner: object) -> bool:
        """Whether the block still holds what `owner` left in it."""
        return self._keys[block] is owner

    def find(self, key: Key) -> int | None:
        """The oldest block that holds `key`."""
        blocks = self._cached.get(key)
        return None if blocks is None else next(iter(blocks))

    def is_free(self, block: int) -> bool:
        return self._num_refs[block] == 0

    def num_refs(self, block: int) -> int:
        """How many requests hold the block."""
        return self._num_refs[block]

    def forget(self, block: int) -> None:
        """Forget what a registered block holds: no lookup finds it any more."""
        key, self._keys[block] = self._keys[block], None
        self.num_cached -= 1
        if key not in self._cached:
            return
        blocks = self._cached[key]
        if len(blocks) == 1:
            del self._cached[key]
        else:
            del blocks[block]

    def forget_all(self) -> bool:
        """Forget all cached prefixes; does nothing and returns False while any block is held."""
        if self.num_free != self.num_blocks - 1:
            return False
        self._cached.clear()
        self.num_cached = 0
        self._keys = [None] * self.num_blocks
        return True

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Verify every invariant against the block tables of all requests. O(blocks)."""
        held = [0] * self.num_blocks
        for table in tables:
            for block in table:
                held[block] += 1
        if held != self._num_refs:
            wrong = [b for b, (a, c) in enumerate(zip(held, self._num_refs, strict=True)) if a != c]
            raise AssertionError(f"blocks whose reference counts are wrong: {wrong[:10]}")
        free = {block for block in range(1, self.num_blocks) if held[block] == 0}
        order = self.free_order
        if free != set(order) or len(order) != len(free) or len(free) != self.num_free or held[0]:
            raise AssertionError("the free queue is not the set of blocks that no request holds")
        cached = {block: key for key, blocks in self._cached.items() for block in blocks}
        keyed = {block: key for block, key in enumerate(self._keys) if key is not None}
        found = {block: key for block, key in keyed.items() if key in self._cached}
        if len(keyed) != self.num_cached or cached != found:
            raise AssertionError("the cache does not agree with the blocks' keys")
