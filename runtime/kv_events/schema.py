"""vLLM's records of KV events, as msgpack: a batch is an array, each event a map that names its type.

Fields and their order are those of `vllm/distributed/kv_events.py` in 0.32; what Sundog has none of (groups
of layers, other tiers of memory) is left out, as there. Block hashes are whole numbers of 64 bits, the end of
the key, as vLLM publishes them unless told otherwise.
"""

from collections.abc import Iterator, Sequence

import msgspec

from actors.core.blocks.kv_events import KvBlocks
from actors.core.params.adapter import Adapter

GPU = "GPU"


class BlockStored(msgspec.Struct, tag=True, omit_defaults=True):
    """Blocks can be found from now on."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[str, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None


class BlockRemoved(msgspec.Struct, tag=True, omit_defaults=True):
    """Blocks can be found no more."""

    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, omit_defaults=True):
    """None can."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    """What happened in a step; `ts` is in Unix seconds."""

    ts: float
    events: list[Event]
    data_parallel_rank: int | None = None


def events_of(changes: Sequence[KvBlocks], block_size: int, lora_ids: dict[str, int]) -> Iterator[Event]:
    """The changes as events, those that follow each other as one; an adapter gets a number when it is new."""
    removed: list[int] = []
    for blocks in changes:
        if not blocks.is_stored and blocks.keys:
            removed += map(block_hash, blocks.keys)
            continue
        if removed:
            yield BlockRemoved(removed, GPU, 0)
            removed = []
        yield _stored(blocks, block_size, lora_ids) if blocks.is_stored else AllBlocksCleared()
    if removed:
        yield BlockRemoved(removed, GPU, 0)


def block_hash(key: object) -> int:
    """The last eight bytes of a block's key, as a number."""
    assert isinstance(key, bytes), "keys are hashed where tokens are known"
    return int.from_bytes(key[-8:], "big")


def _stored(blocks: KvBlocks, block_size: int, lora_ids: dict[str, int]) -> BlockStored:
    adapter = blocks.adapter
    return BlockStored(
        block_hashes=[block_hash(key) for key in blocks.keys],
        parent_block_hash=None if blocks.parent is None else block_hash(blocks.parent),
        token_ids=list(blocks.token_ids),
        block_size=block_size,
        lora_id=None if adapter is None else lora_ids.setdefault(adapter.name, len(lora_ids) + 1),
        medium=GPU,
        lora_name=None if adapter is None else adapter.name,
        extra_keys=_extra_keys(adapter, blocks),
        group_idx=0,
        session_id=blocks.session,
    )


def _extra_keys(adapter: Adapter | None, blocks: KvBlocks) -> list[tuple[str, ...] | None]:
    """What beside its tokens each block's key is made of: the adapter, and the salt in the first."""
    own = () if adapter is None else (adapter.name,)
    salted = own if blocks.cache_salt is None else (*own, blocks.cache_salt)
    return [(salted if index == 0 else own) or None for index in range(len(blocks.keys))]
