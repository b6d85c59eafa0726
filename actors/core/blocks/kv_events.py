"""Changes of a prefix cache: KV events, as vLLM's, for readers that keep an index of it."""

from dataclasses import dataclass

from sundog.actors.core.blocks.runs import OwnKey
from sundog.actors.core.params.sampling import Adapter


@dataclass(slots=True)
class KvBlocks:
    """Consecutive blocks of one request that can be found from now on, or `keys` of those that no longer can.

    For stored blocks `parent` is the key of the block before them, None for the first of a prompt, and
    `token_ids` are their tokens. Nothing stored and no key means that the whole cache was forgotten.
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
    """Keys of blocks that can be found from now on, and of those that can be found no more.

    `blocks` says it in more detail, in the order of the changes, if KV events are published.
    """

    stored: tuple[object, ...]
    removed: tuple[object, ...]
    blocks: tuple[KvBlocks, ...] = ()


class KvChanges:
    """The changes of a pool since they were last taken: of each key, whether it is there now.

    With `publishes`, each of them in order, too. Keys that one request alone has are passed over.
    """

    __slots__ = ("blocks", "is_stored", "publishes")

    def __init__(self, publishes: bool = False) -> None:
        self.is_stored: dict[object, bool] = {}
        self.publishes = publishes
        self.blocks: list[KvBlocks] = []

    def stores(self, keys: list[object]) -> None:
        """Note that these keys are found from now on."""
        if keys and not isinstance(keys[0], OwnKey):
            self.is_stored.update(dict.fromkeys(keys, True))

    def forgets(self, keys: list[object]) -> None:
        """Note that these keys are no longer found."""
        if isinstance(keys[0], OwnKey):
            return
        self.is_stored.update(dict.fromkeys(keys, False))
        if self.publishes:
            self.blocks += [KvBlocks(False, (key,)) for key in keys]

    def forgets_all(self, keys: list[object]) -> None:
        """Note that none of these keys, which are all there were, is found any longer."""
        self.is_stored.update((key, False) for key in keys if not isinstance(key, OwnKey))
        if self.publishes:
            self.blocks.append(KvBlocks(False))

    def take(self) -> KvEvents | None:
        """Return the changes as events, and forget them; None if nothing has changed."""
        changes, self.is_stored = self.is_stored, {}
        blocks, self.blocks = self.blocks, []
        if not (changes or blocks):
            return None
        stored = tuple([key for key, is_stored in changes.items() if is_stored])
        removed = tuple([key for key, is_stored in changes.items() if not is_stored])
        return KvEvents(stored, removed, tuple(blocks))
