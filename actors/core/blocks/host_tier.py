"""KV blocks in the host's memory: a second tier behind the GPU's prefix cache.

The rules are those of vLLM's OffloadingConnector with its LRU policy. Full blocks are copied to the host once
they are computed. A request whose prefix is longer here than on the GPU waits until the blocks are copied
back. The least recently used blocks are evicted, except those being copied in either direction. If too few
can be evicted, the whole copy is skipped.

Law: every key has one slot, of `num_blocks` at most. Copies in one direction run one after another, so the
end of each is known when it is requested.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Sequence

from sundog.actors.core.blocks.runs import Key
from sundog.actors.core.config import HostMemory


class HostTier:
    """KV blocks of one engine in host memory, with the copies in progress."""

    __slots__ = ("_loading", "_loads", "_loads_end_s", "_memory", "_ready_s", "_stores_end_s", "begun")

    def __init__(self, memory: HostMemory) -> None:
        self._memory = memory
        self._ready_s = OrderedDict[Key, float]()
        """Time at which the copy of each block is complete, least recently used block first."""
        self._loading = Counter[Key]()
        """Number of copies to the GPU that read each block."""
        self._loads = deque[Sequence[Key]]()
        """Unfinished copies to the GPU, in order."""
        self._loads_end_s = self._stores_end_s = 0.0
        self.begun: list[tuple[str, float]] = []
        """Requests whose load began, with its end in seconds, until the Scheduler takes them."""

    def __len__(self) -> int:
        return len(self._ready_s)

    def num_found(self, keys: Sequence[Key], start: int, end: int, now_s: float) -> int:
        """Return the number of consecutive blocks from `start` to before `end` in host memory. O(blocks)"""
        ready_s = self._ready_s
        for index in range(start, end):
            if (at_s := ready_s.get(keys[index])) is None or at_s > now_s:
                return index - start
        return max(end - start, 0)

    def is_loading(self, keys: Sequence[Key]) -> bool:
        """Return whether any of these blocks is being copied to the GPU."""
        return bool(self._loading) and not self._loading.keys().isdisjoint(keys)

    def touch(self, keys: Sequence[Key]) -> None:
        """Mark blocks as used now, the first block as the most recent, so that prefixes stay longest."""
        ready_s = self._ready_s
        for key in reversed(keys):
            if key in ready_s:
                ready_s.move_to_end(key)

    def store(self, keys: Sequence[Key], now_s: float) -> None:
        """Copy blocks from the GPU, except those already in host memory."""
        new = [key for key in keys if key not in self._ready_s]
        excess = len(self._ready_s) + len(new) - self._memory.num_blocks
        if excess > 0 and not self._evict(excess, set(keys), now_s):
            return
        end_s = max(self._stores_end_s, now_s)
        for count, key in enumerate(new, 1):
            self._ready_s[key] = end_s + count * self._memory.store_s
        self._stores_end_s = end_s + len(new) * self._memory.store_s
        self.touch(new)

    def _evict(self, count: int, kept: set[Key], now_s: float) -> bool:
        """Evict the `count` least recently used blocks; if fewer can be evicted, evict none and return
        False.
        """
        found: list[Key] = []
        for key, ready_s in self._ready_s.items():
            if ready_s <= now_s and key not in self._loading and key not in kept:
                found.append(key)
                if len(found) == count:
                    break
        if len(found) < count:
            return False
        for key in found:
            del self._ready_s[key]
        return True

    def load(self, name: str, keys: Sequence[Key], now_s: float) -> None:
        """Start copying blocks to the GPU for a request; they stay in host memory."""
        self._loading.update(keys)
        self._loads.append(keys)
        self._loads_end_s = max(self._loads_end_s, now_s) + len(keys) * self._memory.load_s
        self.begun.append((name, self._loads_end_s))

    def loaded(self) -> None:
        """Complete the oldest copy to the GPU."""
        for key in self._loads.popleft():
            self._loading[key] -= 1
            if not self._loading[key]:
                del self._loading[key]

    def forget_all(self) -> None:
        """Forget every block; blocks in copies that are still running may then be reused."""
        self._ready_s.clear()
        self._loading.clear()
        self._loads = deque(() for _ in self._loads)

    def check(self) -> None:
        """Check that no slot is used twice and that blocks being loaded are present. O(blocks)"""
        assert len(self._ready_s) <= self._memory.num_blocks, "more blocks in the host's memory than fit"
        assert Counter(key for keys in self._loads for key in keys) == self._loading
        assert all(key in self._ready_s for key in self._loading), "a block that is being loaded is gone"
