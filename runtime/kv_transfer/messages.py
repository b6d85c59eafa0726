"""The messages between the mover of the server and the ports of its engine processes."""

from dataclasses import dataclass

from sundog.actors.messages import Done


@dataclass(frozen=True, slots=True)
class KvPart:
    """The answer of a `KvPort`: the first `num_blocks` of the blocks that were asked for, layer by layer."""

    num_blocks: int
    data: bytes


@dataclass(frozen=True, slots=True)
class ReadKv:
    """The KvMover asks a KvPort for what blocks hold; it answers for the first of them."""

    block_ids: tuple[int, ...]

    def answered_by(self, answer: KvPart) -> "ReadKv":
        """Names its answer, for a type checker."""
        return self


@dataclass(frozen=True, slots=True)
class WriteKv:
    """The KvMover asks a KvPort to fill blocks."""

    block_ids: tuple[int, ...]
    data: bytes

    def answered_by(self, answer: Done) -> "WriteKv":
        """Names its answer, for a type checker."""
        return self


KV_MESSAGES: tuple[type, ...] = (ReadKv, KvPart, WriteKv)
