"""KvPort of an engine process: reads and fills blocks of its cache for others.

Law: a message is executed when it is delivered, without waiting. So it is done before a later message on the
same link, such as a `Withdraw` that frees the blocks for another request. Steps go on meanwhile: they touch
neither blocks kept for a transfer nor those being filled.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from sundog.actors.kernel.actor import Actor, Handled, answer
from sundog.actors.messages import Done
from sundog.runtime.kv_transfer.messages import KvPart, ReadKv, WriteKv

PART_BYTES = 2**20
"""Most bytes in one message, unless one block has more, so that other messages do not wait long."""


@runtime_checkable
class MovesKv(Protocol):
    """Backend whose blocks can be read and filled while its steps go on."""

    def kv_block_bytes(self) -> int:
        """Return the bytes of a block over all layers."""
        ...

    def read_kv(self, block_ids: Sequence[int]) -> bytes:
        """Return the contents of blocks, layer by layer."""
        ...

    def write_kv(self, block_ids: Sequence[int], data: bytes) -> None:
        """Fill blocks with the result of another backend's `read_kv`."""
        ...


class KvPort(Actor[ReadKv | WriteKv]):
    """Actor that reads and fills blocks of the cache in its process."""

    def __init__(self, name: str, backend: MovesKv) -> None:
        super().__init__(name)
        self._backend = backend

    def handle(self, message: ReadKv | WriteKv) -> Handled:
        match message:
            case ReadKv():
                num_blocks = max(PART_BYTES // self._backend.kv_block_bytes(), 1)
                part = message.block_ids[:num_blocks]
                return answer(message, KvPart(len(part), self._backend.read_kv(part)))
            case WriteKv():
                self._backend.write_kv(message.block_ids, message.data)
                return answer(message, Done())
            case _:
                self.unknown(message)
        return None
