"""Changes of a prefix cache as KV events in vLLM's format."""

from sundog.actors.core.blocks.runs import OwnKey
from sundog.actors.core.params.sampling import Adapter
from sundog.actors.core.records import dataclass


@dataclass(slots=True)
class KvBlocks:
    """Consecutive blocks of one request that were stored, or `keys` of removed blocks.

    For stored blocks `parent` is the key of the previous block (None at the start of a prompt), and
    `token_ids` are their tokens. No stored blocks and no key mean that the whole cache was cleared.
    """

    is_stored: bool
    keys: tuple[object, ...] = ()
    parent: object | None = None
    token_ids: tuple[int, ...] = ()
    adapter: Adapter | None = None
    cache_salt: str | None = None
    session: str | None = None


@dataclass(slots=True)
class KvEvents:
    """Keys of blocks stored in the cache and keys removed from it.

    If KV events are published, `blocks` has the details in order.
    """

    stored: tuple[object, ...]
    removed: tuple[object, ...]
    blocks: tuple[KvBlocks, ...] = ()


class KvChanges:
    """Net changes of a pool since the last `take`: whether each key is now in the cache.

    With `publishes` also each change in order. Keys that belong to one request alone are skipped.
    """

    __slots__ = ("blocks", "is_stored", "publishes")

    def __init__(self, publishes: bool = False) -> None:
        self.is_stored: dict[object, bool] = {}
        self.publishes = publishes
        self.blocks: list[KvBlocks] = []

    def stores(self, keys: list[object]) -> None:
        """Record that these keys entered the cache."""
        if keys and not isinstance(keys[0], OwnKey):
            self.is_stored.update(dict.fromkeys(keys, True))

    def forgets(self, keys: list[object]) -> None:
        """Record that these keys left the cache."""
        if isinstance(keys[0], OwnKey):
            return
        self.is_stored.update(dict.fromkeys(keys, False))
        if self.publishes:
            self.blocks += [KvBlocks(False, (key,)) for key in keys]

    def forgets_all(self, keys: list[object]) -> None:
        """Record that the cache, which held exactly these keys, was cleared."""
        self.is_stored.update((key, False) for key in keys if not isinstance(key, OwnKey))
        if self.publishes:
            self.blocks.append(KvBlocks(False))

    def take(self) -> KvEvents | None:
        """Return the changes as events and reset them; None if nothing changed."""
        changes, self.is_stored = self.is_stored, {}
        blocks, self.blocks = self.blocks, []
        if not (changes or blocks):
            return None
        stored = tuple([key for key, is_stored in changes.items() if is_stored])
        removed = tuple([key for key, is_stored in changes.items() if not is_stored])
        return KvEvents(stored, removed, tuple(blocks))
