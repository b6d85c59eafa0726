"""KV space of requests: prefix hits, admission, growth and release over one block pool.

Law: a running request owns exactly the blocks that its computed and scheduled tokens need. Full blocks are
registered when they are allocated, before their tokens are computed, so that a request admitted in the same
step can already share them.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from sundog.actors.core.batch import Batch
from sundog.actors.core.blocks.block_pool import BlockPool
from sundog.actors.core.blocks.host_tier import HostTier
from sundog.actors.core.blocks.kv_events import KvBlocks, KvChanges, KvEvents
from sundog.actors.core.blocks.runs import BlockRun, Key, OwnKey
from sundog.actors.core.config import SchedulerConfig
from sundog.actors.core.params.sampling import Adapter
from sundog.actors.core.request import Request, Status

BlockHasher = Callable[[Key | None, tuple[int, ...], str | None, Adapter | None], Key]
"""Function from the parent's key (None for the first block), the tokens and the cache salt to a block's
key.
"""


class KVCache:
    """KV space of one scheduler: the block pool and the hash function for decoded blocks."""

    __slots__ = (
        "block_size",
        "caching",
        "hash_block",
        "host",
        "keeps_states",
        "new_states",
        "pool",
        "watermark_blocks",
    )

    def __init__(self, config: SchedulerConfig, hash_block: BlockHasher | None = None) -> None:
        if config.num_gpu_blocks is None:
            raise ValueError("num_gpu_blocks is not known yet: see EngineConfig.with_blocks")
        self.pool = BlockPool(config.num_gpu_blocks)
        self.block_size = config.block_size
        self.caching = config.enable_prefix_caching
        self.keeps_states = config.keeps_states and config.enable_prefix_caching
        self.new_states: set[Key] = set()
        """Keys of blocks whose linear-attention states the step being planned will compute."""
        self.hash_block = hash_block
        self.watermark_blocks = int(config.watermark * config.num_gpu_blocks)
        self.host = None if config.host_memory is None else HostTier(config.host_memory)

    def find_hit(self, request: Request) -> list[int]:
        """Return the longest run of cached blocks that hold the request's first tokens.

        At least one token is left to compute, because the first output is sampled from the last position. A
        request for prompt log probabilities gets no hit, as in vLLM. A request with fetched blocks already
        holds them. O(hit).
        """
        if request.block_ids and request.status is not Status.RUNNING:
            return request.block_ids
        if not self.caching or request.submit.sampling.prompt_logprobs is not None:
            return []
        request.num_named_blocks = self._num_named_blocks(request)
        most = (request.num_tokens - 1) // self.block_size
        self._name(request, min(most, request.num_named_blocks))
        found = self.pool.find(request.block_keys, min(most, len(request.block_keys)))
        return self._up_to_state(request, found) if self.keeps_states else found

    def _up_to_state(self, request: Request, found: list[int]) -> list[int]:
        """Return `found` up to the last block with a state; the next computation keeps a state behind the
        rest.
        """
        count = len(found)
        while count and request.block_keys[count - 1] not in self.pool.states:
            count -= 1
        request.shared_prefix_tokens = len(found) * self.block_size if count < len(found) else 0
        return found[:count]

    def waits_for_state(self, request: Request, num_blocks: int) -> bool:
        """Return whether a hit of this many blocks ends with a state that the current step computes."""
        return bool(num_blocks) and request.block_keys[num_blocks - 1] in self.new_states

    def _num_named_blocks(self, request: Request) -> int:
        """Return how many of the request's first blocks other requests may look up.

        If tokens are only counted, these are just the blocks whose keys came with the request.
        """
        if request.token_ids is None or self.hash_block is None:
            return len(request.submit.block_hashes or ())
        return request.length_limit

    def num_blocks(self, num_tokens: int) -> int:
        """Return the number of blocks for this many tokens."""
        return -(-num_tokens // self.block_size)

    def fits(self, hit: list[int], num_tokens: int, reserved_blocks: int) -> bool:
        """Return whether a request that shares `hit` can have `num_tokens` tokens in all.

        Shared blocks without a holder count as allocated, since they leave the free queue.
        """
        needed = max(self.num_blocks(num_tokens) - len(hit), 0)
        if hit:
            needed += _num_blocks([run for run in self.pool.runs(hit, 0, len(hit)) if not run.num_holders])
        return needed + reserved_blocks <= self.pool.num_free

    def fits_without(
        self, victims: list[Request], hit: list[int], num_tokens: int, reserved_blocks: int
    ) -> bool:
        """Return whether the request would fit after preempting all `victims`. O(blocks of these)"""
        found = self.pool.runs(hit, 0, len(hit))
        held, num_freed = Counter[BlockRun](), 0
        for victim in victims:
            held.update(self.pool.runs(victim.block_ids, 0, victim.num_known_blocks))
            num_freed += len(victim.block_ids) - victim.num_known_blocks
        freed = {run for run, count in held.items() if run.num_holders == count}
        reused = [run for run in found if run in freed or not run.num_holders]
        needed = max(self.num_blocks(num_tokens) - len(hit), 0) + _num_blocks(reused)
        return needed + reserved_blocks <= self.pool.num_free + num_freed + _num_blocks(freed)

    def num_shared_blocks(self, request: Request) -> int:
        """Return the number of a running request's blocks that others also hold; they are always its
        first.
        """
        num_shared = 0
        for run in self.pool.runs(request.block_ids, 0, request.num_known_blocks):
            if run.num_holders == 1:
                break
            num_shared += len(run.blocks)
        return num_shared

    def admit(self, request: Request, hit: list[int], num_tokens: int) -> None:
        """Allocate an admitted request's shared blocks and new ones, for `num_tokens` in all."""
        if not request.block_ids:
            self.hold(request, hit, num_tokens)
        self.register(request, min(num_tokens, request.num_tokens))

    def hold(self, request: Request, hit: list[int], num_tokens: int) -> None:
        """Allocate shared blocks and new, still empty ones for `num_tokens` in all."""
        pool = self.pool
        num_hit, num_blocks = len(hit), self.num_blocks(num_tokens)
        if num_hit:
            pool.share(hit)
            request.block_ids = hit + pool.take(num_blocks - num_hit)
        else:
            request.block_ids = pool.take(num_blocks)
        request.num_registered_blocks = request.num_known_blocks = num_hit

    def grow(self, request: Request, num_tokens: int) -> list[int] | None:
        """Allocate blocks until a running request has `num_tokens`; return None if too few are free."""
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

        Blocks whose keys no other request has are only counted until release, since no lookup can find them
        earlier.
        """
        num_full = num_tokens // self.block_size
        if not self.caching or num_full <= request.num_registered_blocks:
            return
        first, end = request.num_registered_blocks, min(num_full, request.num_named_blocks)
        if first < end:
            self._name(request, end)
            added = self.pool.register(request.block_ids, request.block_keys, first, end)
            request.num_known_blocks = end
            if self.keeps_states and end == num_full:
                # Chunks end where blocks do, and decodes compute every token by itself.
                self.pool.states.add(request.block_keys[end - 1])
                self.new_states.add(request.block_keys[end - 1])
            if self.pool.changes is not None and self.pool.changes.publishes:
                self._publish(self.pool.changes, request, added)
        request.num_registered_blocks = num_full

    def _publish(self, changes: KvChanges, request: Request, added: list[tuple[int, int]]) -> None:
        """Add the request's blocks with new contents to the KV events."""
        assert request.token_ids is not None, "tokens that are only counted are not published"
        size, submit, keys = self.block_size, request.submit, request.block_keys
        for start, end in added:
            parent = keys[start - 1] if start else None
            tokens = tuple(request.token_ids[start * size : end * size])
            salt = None if start else submit.cache_salt
            stored = KvBlocks(
                True,
                tuple(keys[start:end]),
                parent=parent,
                token_ids=tokens,
                adapter=submit.adapter,
                cache_salt=salt,
                session=submit.session,
            )
            changes.blocks.append(stored)

    def unregister(self, request: Request, num_tokens: int) -> None:
        """Remove the request's blocks beyond its first `num_tokens` tokens from the cache."""
        num_full = num_tokens // self.block_size
        num_named = min(request.num_registered_blocks, request.num_named_blocks)
        if num_full < num_named:
            self.pool.forget(request.block_ids, num_full, num_named)
        request.num_registered_blocks = min(request.num_registered_blocks, num_full)

    def take_events(self, batch: Batch, has_ended: bool) -> KvEvents | None:
        """Return the cache's changes at the end of a step that does more than continue decoding.

        Blocks taken by decodes are reported with the next such step, so events come at the same instants
        whether or not decode steps are grouped. If events are published, every step returns them and steps
        are not grouped.
        """
        changes = self.pool.changes
        if changes is None:
            return None
        if not (has_ended or batch.admitted or batch.chunks or batch.preempted or changes.publishes):
            return None
        return changes.take()

    def num_on_host(self, request: Request, num_hit_blocks: int, now_s: float) -> int:
        """Return how many further blocks of a waiting request are in host memory. O(that number)"""
        assert self.host is not None, "there is host memory"
        num_full = request.num_tokens // self.block_size
        self._name(request, min(num_full, request.num_named_blocks))
        num_full = min(num_full, len(request.block_keys))
        return self.host.num_found(request.block_keys, num_hit_blocks, num_full, now_s)

    def offload(self, request: Request, num_blocks: int, now_s: float, *, is_whole: bool) -> None:
        """Copy the request's first `num_blocks` computed blocks to the host, if they are missing there.

        Blocks of an answer are copied together when the request leaves, not one by one as in vLLM.
        """
        if self.host is None or num_blocks <= request.num_offloaded_blocks:
            return
        keys = request.block_keys
        keys += [OwnKey() for _ in range(len(keys), num_blocks)]
        self.host.store(keys[request.num_offloaded_blocks : num_blocks], now_s)
        request.num_offloaded_blocks = num_blocks
        if is_whole:
            self.host.touch(keys[:num_blocks])

    def release(self, request: Request, *, returns: bool = False) -> None:
        """Release all blocks of the request; one that `returns` to the queue may find some of them again."""
        num_kept, num_known = request.num_registered_blocks, request.num_known_blocks
        if returns and num_known < num_kept:
            keys = request.block_keys
            keys += [OwnKey() for _ in range(len(keys), num_kept)]
            self.pool.register(request.block_ids, keys, num_known, num_kept)
            if self.keeps_states:
                self.pool.states.add(keys[num_kept - 1])
            num_known = num_kept
        self.pool.release(request.block_ids, num_known, num_kept)
        request.block_ids = []
        request.num_registered_blocks = request.num_known_blocks = 0

    def _name(self, request: Request, count: int) -> None:
        keys = request.block_keys
        while len(keys) < count:
            assert request.token_ids is not None and self.hash_block is not None
            start = len(keys) * self.block_size
            tokens = tuple(request.token_ids[start : start + self.block_size])
            parent = keys[-1] if keys else None
            keys.append(self.hash_block(parent, tokens, request.submit.cache_salt, request.submit.adapter))


def _num_blocks(runs: Iterable[BlockRun]) -> int:
    return sum([len(run.blocks) for run in runs])
