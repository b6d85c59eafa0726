"""Indexes of the KV blocks of each replica, as known to its Router.

A block's key stands for the block and everything before it, and engines evict the end of a prompt before its
beginning. So an index with a block has all blocks before it, and the length of a hit is found by bisection.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

Key = object
REPEATS = 4
"""Number of keys, as a multiple of the capacity, that an index stores before it drops the oldest prompt."""


class PrefixIndex(Protocol):
    """Known blocks of a replica."""

    def num_hit_blocks(self, keys: Sequence[Key]) -> int:
        """Return the number of a prompt's first blocks that the replica has. O(log blocks)"""
        ...

    def sent(self, keys: tuple[Key, ...]) -> None:
        """Record that a prompt with these blocks was sent to the replica. O(blocks)"""
        ...

    def changed(self, stored: Iterable[Key], removed: Iterable[Key]) -> None:
        """Record the blocks that the replica stored and removed since its last report."""
        ...


class SentBlocks:
    """Approximate index of a replica's blocks: the prompts that were sent, least recently sent evicted first.

    It holds at most `capacity` blocks, and prompts with at most `REPEATS` times as many in total. A block is
    evicted with the last prompt that contains it.
    """

    __slots__ = ("_capacity", "_last", "_num_keys", "_number", "_prompts")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._last: dict[Key, int] = {}
        """Number of the last prompt with each block."""
        self._prompts: deque[tuple[int, tuple[Key, ...]]] = deque()
        self._num_keys = 0
        self._number = 0

    def num_hit_blocks(self, keys: Sequence[Key]) -> int:
        return num_leading(keys, self._last)

    def sent(self, keys: tuple[Key, ...]) -> None:
        self._number += 1
        self._num_keys += len(keys)
        self._last.update(dict.fromkeys(keys, self._number))
        self._prompts.append((self._number, keys))
        while len(self._last) > self._capacity or self._num_keys > REPEATS * self._capacity:
            self._forget(*self._prompts.popleft())

    def _forget(self, number: int, keys: tuple[Key, ...]) -> None:
        last = self._last
        self._num_keys -= len(keys)
        for key in keys:
            if last.get(key) == number:
                del last[key]

    def changed(self, stored: Iterable[Key], removed: Iterable[Key]) -> None:
        """Ignore reports of replicas."""


class StoredBlocks:
    """Exact index of the blocks that the replica reports; it lags behind by the delay of the reports."""

    __slots__ = ("_stored",)

    def __init__(self) -> None:
        self._stored: dict[Key, None] = {}

    def num_hit_blocks(self, keys: Sequence[Key]) -> int:
        return num_leading(keys, self._stored)

    def sent(self, keys: tuple[Key, ...]) -> None:
        """Do nothing: blocks are stored only when the replica reports them."""

    def changed(self, stored: Iterable[Key], removed: Iterable[Key]) -> None:
        for key in removed:
            self._stored.pop(key, None)
        self._stored.update(dict.fromkeys(stored))


class NoBlocks:
    """Empty index, for policies without one."""

    __slots__ = ()

    def num_hit_blocks(self, keys: Sequence[Key]) -> int:
        return 0

    def sent(self, keys: tuple[Key, ...]) -> None:
        pass

    def changed(self, stored: Iterable[Key], removed: Iterable[Key]) -> None:
        pass


def new_index(name: str) -> Callable[[int], PrefixIndex]:
    """Return the constructor of a replica's index, which takes its number of blocks; `name` as in
    `RouterPolicy.index`.
    """
    match name:
        case "own":
            return SentBlocks
        case "events":
            return lambda num_blocks: StoredBlocks()
        case _:
            return lambda num_blocks: NoBlocks()


def num_leading(keys: Sequence[Key], known: dict[Key, int] | dict[Key, None]) -> int:
    """Return the number of leading keys that are known, by bisection. O(log keys)"""
    least, most = 0, 1
    while most <= len(keys) and keys[most - 1] in known:
        least, most = most, 2 * most
    most = min(most - 1, len(keys))
    while least < most:
        middle = (least + most + 1) // 2
        if keys[middle - 1] in known:
            least = middle
        else:
            most = middle - 1
    return least
