"""KV space for requests: prefix hits, admission, growth and release over one block pool.

Law: a running request owns exactly the blocks that its computed and scheduled tokens need. Full
blocks are registered under their keys when they are given out, before their tokens are computed,
so that a request admitted in the same step may already share them.
"""

from collections import Counter
from collections.abc import Callable
from itertools import takewhile

from actors.core.batch import Batch
from actors.core.blocks.block_pool import BlockPool, Key
from actors.core.blocks.kv_events import KvBlocks, KvChanges, KvEvents
from actors.core.config import SchedulerConfig
from actors.core.params.sampling import Adapter
from actors.core.request import Request

BlockHasher = Callable[[Key | None, tuple[int, ...], str | None, Adapter | None], Key]
"""Key of a full block from its parent's key (None for the first), its tokens and the cache salt."""


class KVCache:
    """The KV space of one scheduler: the pool, and how keys of decoded blocks are made."""

    __slots__ = ("block_size", "caching", "hash_block", "pool", "watermark_blocks")

    def __init__(self, config: SchedulerConfig, hash_block: BlockHasher | None = None) -> None:
        if config.num_gpu_blocks is None:
            raise ValueError("num_gpu_blocks is not known yet: see EngineConfig.with_blocks")
        self.pool = BlockPool(config.num_gpu_blocks)
        self.block_size = config.block_size
        self.caching = config.enable_prefix_caching
        self.hash_block = hash_block
        self.watermark_blocks = int(config.watermark * config.num_gpu_blocks)

    def find_hit(self, request: Request) -> list[int]:
        """The longest run of cached blocks that hold the request's first tokens.

        At least one token is left to compute, because a token is sampled from the last one. A request that
        asks for its prompt's log probabilities computes its whole prompt, as in vLLM. O(hit).
        """
        if not self.caching or request.submit.sampling.prompt_logprobs is not None:
            return []
        hit: list[int] = []
        num_named = request.num_named_blocks = self._num_named_blocks(request)
        for index in range((request.num_tokens - 1) // self.block_size):
            if index < num_named:
                block = self.pool.find(self._key(request, index))
            else:
                block = self._find_own(request, index)
            if block is None:
                break
            hit.append(block)
        return hit

    def _find_own(self, request: Request, index: int) -> int | None:
        """The oldest block that still holds the tokens of a block of the request's own."""
        blocks = request.residue.get(index)
        if blocks is not None:
            for block in blocks:
                if self.pool.is_owned(block, request):
                    return block
        return None

    def _num_named_blocks(self, request: Request) -> int:
        """How many of the request's first blocks have keys that others may look up.

        Where tokens are only counted, no other request can share any beyond the blocks whose keys came with
        the request.
        """
        if request.token_ids is None or self.hash_block is None:
            return len(request.block_keys)
        return request.length_limit

    def num_blocks(self, num_tokens: int) -> int:
        """Blocks that hold this many tokens."""
        return -(-num_tokens // self.block_size)

    def fits(self, hit: list[int], num_tokens: int, reserved_blocks: int) -> bool:
        """Return True if a request that shares `hit` can have `num_tokens` tokens in all.

        Shared blocks that no request holds count as taken: they leave the free queue.
        """
        needed = max(self.num_blocks(num_tokens) - len(hit), 0)
        if hit:
            needed += sum([self.pool.is_free(block) for block in hit])
        return needed + reserved_blocks <= self.pool.num_free

    def fits_without(
        self, victims: list[Request], hit: list[int], num_tokens: int, reserved_blocks: int
    ) -> bool:
        """Return True if the request would fit without all of `victims`. O(their blocks)."""
        pool = self.pool
        counts = Counter(block for victim in victims for block in victim.block_ids)
        freed = {block for block, count in counts.items() if pool.num_refs(block) == count}
        reused = sum(block in freed or pool.is_free(block) for block in hit)
        needed = max(self.num_blocks(num_tokens) - len(hit), 0) + reused
        return needed + reserved_blocks <= pool.num_free + len(freed)

    def num_shared_blocks(self, request: Request) -> int:
        """Return the number of a running request's blocks that others hold too: always its first ones."""
        num_refs = self.pool.num_refs
        shared = takewhile(lambda block: num_refs(block) > 1, request.block_ids)
        return sum(1 for _ in shared)

    def admit(self, request: Request, hit: list[int], num_tokens: int) -> None:
        """Give an admitted request its shared blocks and new ones for `num_tokens` in all."""
        pool = self.pool
        pool.share(hit)
        request.block_ids = hit + pool.take(self.num_blocks(num_tokens) - len(hit))
        request.num_registered_blocks = request.num_known_blocks = len(hit)
        self.register(request, min(num_tokens, request.num_tokens))

    def grow(self, request: Request, num_tokens: int) -> list[int] | None:
        """Blocks so that a running request holds `num_tokens`; None if there are too few."""
        count = self.num_blocks(num_tokens) - len(request.block_ids)
        if count <= 0:
            return []
        if count > self.pool.num_free:
            return None
        blocks = self.pool.take(count)
        request.block_ids += blocks
        return blocks

    def register(self, request: Request, num_tokens: int) -> None:
        """Register the request's full blocks among its first `num_tokens` known tokens.

        Its own blocks are only counted until it releases them: no lookup could find them before.
        """
        num_full = num_tokens // self.block_size
        if not self.caching or num_full <= request.num_registered_blocks:
            return
        first, num_named = request.num_registered_blocks, min(num_full, request.num_named_blocks)
        if self.pool.changes is not None and self.pool.changes.publishes:
            self._publish(self.pool.changes, request, first, num_named)
        for index in range(first, num_named):
            self.pool.register(request.block_ids[index], self._key(request, index))
        request.num_known_blocks = max(request.num_known_blocks, num_named)
        request.num_registered_blocks = num_full

    def _publish(self, changes: KvChanges, request: Request, first: int, end: int) -> None:
        """Note which of the blocks from `first` to before `end` hold what no block held before, and what."""
        assert request.token_ids is not None, "tokens that are only counted are not published"
        size, submit = self.block_size, request.submit
        run: list[Key] = []
        for index in range(first, end + 1):
            key = self._key(request, index) if index < end else None
            if key is not None and self.pool.find(key) is None:
                run.append(key)
            elif run:
                start = index - len(run)
                parent = self._key(request, start - 1) if start else None
                tokens = tuple(request.token_ids[start * size : index * size])
                salt = None if start else submit.cache_salt
                blocks = KvBlocks(True, tuple(run), parent, tokens, submit.adapter, salt, submit.session)
                changes.blocks.append(blocks)
                run = []

    def unregister(self, request: Request, num_tokens: int) -> None:
        """Forget the request's blocks beyond those that its first `num_tokens` tokens fill."""
        num_full = num_tokens // self.block_size
        num_named = min(request.num_registered_blocks, request.num_named_blocks)
        for block in request.block_ids[num_full:num_named]:
            self.pool.forget(block)
        request.num_registered_blocks = min(request.num_registered_blocks, num_full)

    def take_events(self, batch: Batch, has_ended: bool) -> KvEvents | None:
        """Return the changes of the prefix cache, at the end of a step that does more than decode on.

        What decodes take comes with the next such step: so events come at the same instants whether or not a
        run of decodes is one event. Where events are published, they come with every step, without runs.
        """
        changes = self.pool.changes
        if changes is None:
            return None
        if not (has_ended or batch.admitted or batch.chunks or batch.preempted or changes.publishes):
            return None
        return changes.take()

    def release(self, request: Request, *, returns: bool = False) -> None:
        """Take back all of the request's blocks; if it `returns`, it may find some again."""
        num_known = request.num_known_blocks
        if returns and request.num_registered_blocks > request.num_named_blocks:
            self._own(request)
            num_known = max(num_known, request.num_registered_blocks)
        self.pool.release(request.block_ids, request.num_registered_blocks, num_known)
        request.block_ids = []
        request.num_registered_blocks = 0

    def _own(self, request: Request) -> None:
        """Mark the request's own full blocks as its own, and remember where they are."""
        pool, first, residue = self.pool, request.num_named_blocks, request.residue
        own = request.block_ids[first : request.num_registered_blocks]
        for index, blocks in residue.items():
            residue[index] = [block for block in blocks if pool.is_owned(block, request)]
        for index, block in enumerate(own, first):
            if not pool.is_owned(block, request):
                residue.setdefault(index, []).append(block)
        pool.own(own, request)

    def _key(self, request: Request, index: int) -> Key:
        """The key of a full block of known tokens that others may look up; made once."""
        keys = request.block_keys
        while len(keys) <= index:
            assert request.token_ids is not None and self.hash_block is not None
            start = len(keys) * self.block_size
            tokens = tuple(request.token_ids[start : start + self.block_size])
            parent = keys[-1] if keys else None
            keys.append(self.hash_block(parent, tokens, request.submit.cache_salt, request.submit.adapter))
        return keys[index]
