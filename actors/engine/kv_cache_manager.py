"""KVCacheManager: owns the block pool and its prefix cache, and lends them to one Scheduler.

Bookkeeping takes no modelled time, so the Scheduler calls the lent pool directly, and only between two
awaits. Requests of other actors come here as messages. Those that change the pool are passed on to the
Scheduler, which applies them between two steps, in order with new requests and aborts.
"""

from sundog.actors.core.blocks.kv_cache import BlockHasher, KVCache
from sundog.actors.core.blocks.kv_events import KvChanges
from sundog.actors.core.config import SchedulerConfig
from sundog.actors.kernel.actor import Actor, Handled, Ref, Reply, Tap, answer
from sundog.actors.messages import Done, Refused, ResetPrefixCache


class KVCacheManager(Actor[ResetPrefixCache]):
    """Owner of one engine's KV cache."""

    def __init__(
        self,
        name: str,
        config: SchedulerConfig,
        hash_block: BlockHasher | None,
        *,
        changes: KvChanges | None = None,
        tap: Tap | None = None,
    ) -> None:
        super().__init__(name, tap=tap)
        self._kv = KVCache(config, hash_block)
        self._kv.pool.changes = changes
        self._is_lent = False
        self._scheduler: Ref[ResetPrefixCache] | None = None

    def lend(self) -> KVCache:
        """Return the KV cache, lent to the one Scheduler that may call it."""
        if self._is_lent:
            raise RuntimeError(f"{self.name} has lent its pool already: it has one Scheduler")
        self._is_lent = True
        return self._kv

    def connect(self, scheduler: Ref[ResetPrefixCache]) -> None:
        """Set the Scheduler that borrows the pool, before the KVCacheManager starts."""
        self._scheduler = scheduler

    def handle(self, message: ResetPrefixCache) -> Handled:
        match message:
            case ResetPrefixCache():
                return answer(message, self._reset(message))
            case _:
                self.unknown(message)

    async def closed(self) -> None:
        if self._scheduler is not None:
            self._scheduler.close()

    def _reset(self, reset: ResetPrefixCache) -> Reply[Done | Refused]:
        assert self._scheduler is not None, "the pool is lent before the first message"
        return self._scheduler.request(reset)
