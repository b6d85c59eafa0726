"""The port of an engine process: others read blocks of its cache there, and fill blocks.

Law: a message is done when it has been delivered, and waits for nothing. So what comes behind it over the
same link, such as a `Withdraw` that gives the blocks to another request, finds it done. Steps go on
meanwhile: they touch neither blocks that are kept for a transfer nor those that one fills.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from sundog.actors.kernel.actor import Actor, Handled, answer
from sundog.actors.messages import Done
from sundog.runtime.kv_transfer.messages import KvPart, ReadKv, WriteKv

PART_BYTES = 2**20
"""The most bytes in one message, unless one block has more: no other message waits long for it."""


@runtime_checkable
class MovesKv(Protocol):
    """The interface of a Backend whose blocks can be read and filled while its steps go on."""

    def kv_block_bytes(self) -> int:
        """The bytes of a block, over all layers."""
        ...

    def read_kv(self, block_ids: Sequence[int]) -> bytes:
        """Return what blocks hold, layer by layer."""
        ...

    def write_kv(self, block_ids: Sequence[int], data: bytes) -> None:
        """Fill blocks with what `read_kv` of such a backend has returned."""
        ...


class KvPort(Actor[ReadKv | WriteKv]):
    """Reads and fills blocks of the cache in its process."""

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
