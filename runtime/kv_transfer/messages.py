"""Messages between the server's mover and the ports of its engine processes."""

from dataclasses import dataclass

from sundog.actors.messages import Done


@dataclass(frozen=True, slots=True)
class KvPart:
    """Answer of a `KvPort`: the first `num_blocks` of the requested blocks, layer by layer."""

    num_blocks: int
    data: bytes


@dataclass(frozen=True, slots=True)
class ReadKv:
    """Request to a KvPort to read blocks; the answer has the first of them."""

    block_ids: tuple[int, ...]

    def answered_by(self, answer: KvPart) -> "ReadKv":
        """Return the message with its reply type, for the type checker."""
        return self


@dataclass(frozen=True, slots=True)
class WriteKv:
    """Request to a KvPort to fill blocks."""

    block_ids: tuple[int, ...]
    data: bytes

    def answered_by(self, answer: Done) -> "WriteKv":
        """Return the message with its reply type, for the type checker."""
        return self


KV_MESSAGES: tuple[type, ...] = (ReadKv, KvPart, WriteKv)
