"""The blocks of KV that each replica has, as far as their Router knows: an index for each replica.

Blocks are named by keys that each stand for everything before them too, and engines forget the end of a
prompt before its beginning: so an index that knows a block knows all before it, and the length of a hit is
found by bisection.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

Key = object
REPEATS = 4
"""An index may note all its blocks this often before it forgets what was sent first."""


class PrefixIndex(Protocol):
    """The blocks of a replica, as far as they are known."""

    def num_hit_blocks(self, keys: Sequence[Key]) -> int:
        """The number of a prompt's first blocks that the replica has. O(log blocks)"""
        ...

    def sent(self, keys: tuple[Key, ...]) -> None:
        """Note that a prompt with these blocks was sent to the replica. O(blocks)"""
        ...

    def changed(self, stored: Iterable[Key], removed: Iterable[Key]) -> None:
        """The replica says what it has stored and removed since it last said so."""
        ...


class SentBlocks:
    """The approximate index: the blocks of the prompts that were sent, the least recently sent forgotten.

    It holds at most `capacity` blocks, and prompts of at most `REPEATS` times as many. A block is forgotten
    with the last prompt that had it.
    """

    __slots__ = ("_capacity", "_last", "_num_keys", "_number", "_prompts")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._last: dict[Key, int] = {}
        """The last prompt that had each block, by number."""
        self._prompts: deque[tuple[int, tuple[Key, ...]]] = deque()
        self._num_keys = 0
        """The number of keys of all these prompts together."""
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
        """Ignore what replicas say of their blocks."""


class StoredBlocks:
    """The exact index: the blocks that the replica says it has, as late as it says so."""

    __slots__ = ("_stored",)

    def __init__(self) -> None:
        self._stored: dict[Key, None] = {}

    def num_hit_blocks(self, keys: Sequence[Key]) -> int:
        return num_leading(keys, self._stored)

    def sent(self, keys: tuple[Key, ...]) -> None:
        """Do nothing: nothing is stored before the replica says so."""

    def changed(self, stored: Iterable[Key], removed: Iterable[Key]) -> None:
        for key in removed:
            self._stored.pop(key, None)
        self._stored.update(dict.fromkeys(stored))


class NoBlocks:
    """The index of a policy that does not ask: it knows nothing, and costs nothing."""

    __slots__ = ()

    def num_hit_blocks(self, keys: Sequence[Key]) -> int:
        return 0

    def sent(self, keys: tuple[Key, ...]) -> None:
        pass

    def changed(self, stored: Iterable[Key], removed: Iterable[Key]) -> None:
        pass


def new_index(name: str) -> Callable[[int], PrefixIndex]:
    """The maker of a replica's index, given its number of blocks; `name` is as in `RouterPolicy.index`."""
    match name:
        case "own":
            return SentBlocks
        case "events":
            return lambda num_blocks: StoredBlocks()
        case _:
            return lambda num_blocks: NoBlocks()


def num_leading(keys: Sequence[Key], known: dict[Key, int] | dict[Key, None]) -> int:
    """The number of first keys that are known; an index that knows a key knows all before it. O(log keys)"""
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
