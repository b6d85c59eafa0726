"""Paged key and value tensors: their shapes, their size in bytes, and how many fit.

Shapes: S blocks, P slots a block, K key/value heads, D key width, E value width. Block 0 is the null block of
the block pool: it belongs to no request and serves as padding.

The key of the token at position p is in slot p % P of the block table[p // P], which is the slot table[p //
P] * P + p % P of all. With P = 4 and the table [7, 2], position 5 is in slot 2 * 4 + 1 = 9:

    block     0         1         2              7
    slots  | null    |         | 4  5  .  . |   | 0  1  2  3 |    positions of the request
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import psutil  # type: ignore[import-untyped]  # ships no types
import torch
from numpy.typing import NDArray
from torch import Tensor

from sundog.actors.core.config import ConfigError
from sundog.runtime.checkpoint.facts import check_blocks
from sundog.runtime.host.memory import ask_kernel, whole_huge_pages

MADV_HUGEPAGE = 14
CUDA_SHARE = 0.9
# A CPU's memory is shared: with the operating system, other replicas, the page cache.
CPU_SHARE = 0.4


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Shape of the keys and values that one attention layer stores per token, and of its queries."""

    num_heads: int
    key_width: int
    value_width: int
    dtype: torch.dtype
    num_query_heads: int | None = None
    has_window: bool = False
    has_softcap: bool = False
    has_sinks: bool = False

    @property
    def token_bytes(self) -> int:
        return self.num_heads * (self.key_width + self.value_width) * self.dtype.itemsize


class PagedKVCache:
    """Keys [S, P, K, D] and values [S, P, K, E] of every layer.

    Initialised with zeros, because a masked slot weighs 0, and 0 times NaN is NaN. On the CPU blocks take
    memory only when they are first written.
    """

    __slots__ = ("block_size", "keys_SPKD", "shapes", "values_SPKE")

    def __init__(
        self, layers: list[LayerShape], num_blocks: int, block_size: int, device: torch.device
    ) -> None:
        self.block_size = block_size
        self.shapes = layers
        room = (num_blocks, block_size)
        self.keys_SPKD = [_zeros((*room, s.num_heads, s.key_width), s.dtype, device) for s in layers]
        self.values_SPKE = [_zeros((*room, s.num_heads, s.value_width), s.dtype, device) for s in layers]

    @property
    def num_blocks(self) -> int:
        return self.keys_SPKD[0].shape[0]

    @property
    def layers(self) -> list[Tensor]:
        """Keys and values of every layer, blocks first."""
        return [*self.keys_SPKD, *self.values_SPKE]

    def write(self, layer: int, slots_T: Tensor, k_TKD: Tensor, v_TKE: Tensor) -> None:
        """Store the keys and values of T tokens in their slots (block * block_size + offset)."""
        self.keys_SPKD[layer].flatten(0, 1).index_copy_(0, slots_T, k_TKD)
        self.values_SPKE[layer].flatten(0, 1).index_copy_(0, slots_T, v_TKE)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers."""
        return block_bytes(self.shapes, self.block_size)

    def read(self, block_ids: Sequence[int]) -> bytes:
        """Return the contents of blocks on a CPU: the keys of every layer, then the values."""
        return b"".join([layer_SB[list(block_ids)].data for layer_SB in self._as_bytes()])

    def fill(self, block_ids: Sequence[int], data: bytes) -> None:
        """Write the result of `read` for as many blocks of an equal cache; ValueError for another size."""
        if len(data) != len(block_ids) * self.block_bytes:
            raise ValueError(f"{len(data)} bytes are not {len(block_ids)} blocks of {self.block_bytes}")
        begin = 0
        for layer_SB in self._as_bytes():
            end = begin + len(block_ids) * layer_SB.shape[1]
            part_B = np.frombuffer(data, np.uint8, end - begin, begin)
            layer_SB[list(block_ids)] = part_B.reshape(len(block_ids), -1)
            begin = end

    def _as_bytes(self) -> list[NDArray[np.uint8]]:
        num_blocks = self.num_blocks
        return [layer.view(num_blocks, -1).view(torch.uint8).numpy() for layer in self.layers]

    def wipe(self, blocks_B: Tensor) -> None:
        """Fill these blocks with zeros, in every layer."""
        if len(blocks_B):
            for layer_SPKD in self.layers:
                layer_SPKD.index_fill_(0, blocks_B, 0)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a tensor of zeros; on the CPU its pages take no memory until they are written.

    numpy allocates zeroed memory lazily, while `torch.zeros` writes every page. A decode reads a few
    kilobytes here and there, each in pages of its own: on huge pages 27 GB/s instead of 23 (2-core AMX
    machine). Without huge pages nothing changes.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    flat = torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, np.uint8))
    first, end = whole_huge_pages(flat.data_ptr(), flat.nbytes)
    if sys.platform == "linux" and first < end:
        ask_kernel(first, end - first, MADV_HUGEPAGE)
    return flat.view(dtype).view(shape)


def block_bytes(layers: list[LayerShape], block_size: int) -> int:
    """Return the bytes of one block over all layers."""
    return block_size * sum(shape.token_bytes for shape in layers)


def free_bytes(device: torch.device, utilization: float | None, num_sharing: int = 1) -> int:
    """Return the bytes the cache may take: on CUDA a share of all memory, on the CPU of the available memory.

    Memory that other engines have reserved but not yet written still counts as available, so the
    `num_sharing` engines of one machine divide it.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what torch keeps for later is not free for others, and is for the cache
        free, total = torch.cuda.mem_get_info(device)
        return int(total * (CUDA_SHARE if utilization is None else utilization)) - (total - free)
    share = CPU_SHARE if utilization is None else utilization
    return int(psutil.virtual_memory().available * share) // num_sharing


def choose_num_blocks(
    bytes_per_block: int,
    has_bytes: int,
    *,
    block_size: int,
    max_model_len: int,
    max_num_seqs: int,
    wanted: int | None = None,
) -> int:
    """Return the number of blocks to make, including the null block.

    This is `wanted` if given; else what fits in `has_bytes`, though never more than `max_num_seqs` requests
    of full length can use. Raises ConfigError if the memory is too small for that, or for one request of
    `max_model_len`.
    """
    one_request = math.ceil(max_model_len / block_size) + 1
    fits = max(has_bytes, 0) // bytes_per_block
    if wanted is None:
        useful = max_num_seqs * (one_request - 1) + 1
        needed, chosen = one_request, min(fits, useful)
    else:
        needed = chosen = wanted
    if needed > fits:
        raise ConfigError(
            f"not enough memory for the KV cache: needs {_size(needed * bytes_per_block)}"
            f" ({needed} blocks of {block_size} tokens), has {_size(has_bytes)};"
            f" lower {'--max-model-len' if wanted is None else '--num-gpu-blocks'}"
            f" or free memory"
        )
    check_blocks(chosen, block_size, max_model_len)
    return chosen


def _size(num_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.4g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.2f} GiB"
