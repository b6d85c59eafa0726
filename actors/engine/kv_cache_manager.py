"""The KVCacheManager: owns the block pool and its prefix cache, and lends them to one Scheduler.

Bookkeeping takes no modelled time, so the Scheduler calls the lent pool, and only between two
awaits. What others want of the pool comes as messages, which therefore never see half a step.
"""

from typing import Any

from actors.actor import Actor, Tap
from actors.core.config import SchedulerConfig
from actors.core.kv_cache import BlockHasher, KVCache
from actors.messages import CacheStats, Done, Inspect, Refused, ResetPrefixCache


class KVCacheManager(Actor):
    """The owner of one engine's KV cache."""

    def __init__(
        self, name: str, config: SchedulerConfig, hash_block: BlockHasher | None, *, tap: Tap | None = None
    ) -> None:
        super().__init__(name, tap=tap)
        self._kv = KVCache(config, hash_block)
        self._is_lent = False

    def lend(self) -> KVCache:
        """The KV cache, for the one Scheduler that may call it."""
        if self._is_lent:
            raise RuntimeError(f"{self.name} has lent its pool already: it has one Scheduler")
        self._is_lent = True
        return self._kv

    def handle(self, message: Any) -> Any:
        pool = self._kv.pool
        match message:
            case Inspect():
                return CacheStats(
                    num_blocks=pool.num_blocks - 1,
                    num_free_blocks=pool.num_free,
                    num_cached_blocks=pool.num_cached,
                    num_queried_tokens=self._kv.num_queried_tokens,
                    num_hit_tokens=self._kv.num_hit_tokens,
                )
            case ResetPrefixCache():
                if pool.forget_all():
                    return Done()
                held = pool.num_blocks - 1 - pool.num_free
                return Refused(f"{held} blocks are held by requests: try again when none run")
        return super().handle(message)
