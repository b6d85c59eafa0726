"""Stored responses, to which clients may refer later: each has an owner, and storage is limited in bytes.

Law: the holder of a key sees, continues, cancels and deletes its own responses only; the id of another's is
answered like an unknown one. Without keys, or with one key for all, there is one owner.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from sundog.actors.api.answers.response import ResponseObject
from sundog.actors.api.bodies.parsing import Json
from sundog.actors.api.errors import NO_RESPONSE, ApiError, shown

MOST_STORED = 1000
MOST_BYTES = 2**28
"""Bytes of all stored responses."""
MOST_BYTES_OF_A_KEY = 2**26
"""Bytes of the stored responses of one key's holder; without keys `MOST_BYTES` applies."""
BYTES_A_VALUE = 128
"""Bytes of memory of a parsed value beyond its text: an object, a list or a string."""

Owner = str | None
"""Digest of a key; None if keys do not distinguish clients."""


def size_of(body: bytes) -> int:
    """Estimate the bytes of memory of a parsed body."""
    return len(body) + BYTES_A_VALUE * (body.count(b'"') // 2 + body.count(b"[") + body.count(b"{"))


@dataclass(slots=True)
class StoredResponse:
    """Response with the conversation before it, the engine's request id, and its size in bytes."""

    response: ResponseObject
    conversation: list[Json]
    request_id: str
    num_bytes: int

    @property
    def so_far(self) -> list[Json]:
        """Conversation that a following response continues."""
        return [*self.conversation, *self.response.answer()]


@dataclass(slots=True)
class StoredResponses:
    """Stored responses; each owner's oldest is evicted first. Nothing is stored unless `keeps` is set.

    `most_bytes` limits the total, `most_bytes_of_a_key` each owner's share.
    """

    keeps: bool = True
    most_bytes: int = MOST_BYTES
    most_bytes_of_a_key: int = MOST_BYTES_OF_A_KEY
    _kept: "dict[Owner, OrderedDict[str, StoredResponse]]" = field(default_factory=dict)
    _num_bytes: dict[Owner, int] = field(default_factory=dict)

    def check_room(self, owner: Owner, num_bytes: int) -> None:
        """Raise 413 for a conversation that is too large to be stored."""
        if self.keeps and num_bytes > (most := self._most_bytes(owner)):
            what = f"The conversation takes {num_bytes} bytes; at most {most} are stored: send store = false."
            raise ApiError(413, what, "store")

    def keep(self, owner: Owner, name: str, stored: StoredResponse) -> None:
        """Store a response, evicting the owner's oldest first, then those of the owner with the most
        bytes.
        """
        if not self.keeps:
            return
        own = self._kept.setdefault(owner, OrderedDict())
        assert name not in own, f"two responses have the id {name}"
        own[name] = stored
        self._num_bytes[owner] = self._num_bytes.get(owner, 0) + stored.num_bytes
        while self._num_bytes[owner] > self._most_bytes(owner) and len(own) > 1:
            self._forget(owner, next(iter(own)))
        while sum(self._num_bytes.values()) > self.most_bytes or self._num() > MOST_STORED:
            largest = max(self._num_bytes, key=self._num_bytes.__getitem__)
            self._forget(largest, next(iter(self._kept[largest])))

    def get(self, owner: Owner, name: str, param: str = "response_id") -> StoredResponse:
        """Return a response of this owner; raises 404 for one that is unknown, or another's."""
        if not self.keeps:
            why = "with --api-processes above 1 none is stored, send the whole conversation"
            raise ApiError(404, f"There is no response {shown(name)}: {why}.", param, NO_RESPONSE)
        own = self._kept.get(owner)
        if own is None or (stored := own.get(name)) is None:
            raise ApiError(
                404, f"There is no response {shown(name)}; it may have expired.", param, NO_RESPONSE
            )
        return stored

    def forget(self, owner: Owner, name: str) -> None:
        """Delete a response; raises 404 like `get`."""
        self.get(owner, name)
        self._forget(owner, name)

    @property
    def num_bytes(self) -> int:
        """Bytes of all stored responses."""
        return sum(self._num_bytes.values())

    def _most_bytes(self, owner: Owner) -> int:
        return self.most_bytes if owner is None else self.most_bytes_of_a_key

    def _num(self) -> int:
        return sum(map(len, self._kept.values()))

    def _forget(self, owner: Owner, name: str) -> None:
        self._num_bytes[owner] -= self._kept[owner].pop(name).num_bytes
        if not self._kept[owner]:
            del self._kept[owner], self._num_bytes[owner]
