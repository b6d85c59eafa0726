"""What changes in a prefix cache: KV events, as vLLM's, for those who keep an index of it."""

from dataclasses import dataclass


@dataclass(init=False, slots=True)
class KvEvents:
    """Keys of blocks that can be found from now on, and of those that can be found no more."""

    stored: tuple[object, ...]
    removed: tuple[object, ...]

    def __init__(self, stored: tuple[object, ...], removed: tuple[object, ...]) -> None:
        self.stored = stored
        self.removed = removed


class KvChanges:
    """The changes of a pool since they were last taken: of each key, whether it is there now."""

    __slots__ = ("is_stored",)

    def __init__(self) -> None:
        self.is_stored: dict[object, bool] = {}

    def take(self) -> KvEvents | None:
        """All of them as events; None if nothing has changed."""
        changes, self.is_stored = self.is_stored, {}
        if not changes:
            return None
        stored = tuple([key for key, is_stored in changes.items() if is_stored])
        return KvEvents(stored, tuple([key for key, is_stored in changes.items() if not is_stored]))
