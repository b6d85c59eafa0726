"""Attention of decoding requests: one query token each, with block tables on the device.

The host does not depend on how many keys a request has, only numbers on the device do, so that a recorded
CUDA graph is valid for every step.

Shapes: N requests, B blocks of the longest; H query heads, K key heads; D key width, E value width; S blocks,
P slots a block.
"""

from dataclasses import dataclass
from functools import cache
from typing import Protocol, Unpack

import torch
from torch import Tensor

from sundog.runtime.attention import Special
from sundog.runtime.attention.gathered import attend_group
from sundog.runtime.attention.groups import Group

TILE_KEYS = 64
MOST_SPLITS = 32
PROGRAMS_PER_PROCESSOR = 4


@dataclass(slots=True)
class Decodes:
    """Decoding requests of a step: their block tables [N, B] and numbers of keys, both int32."""

    table_NB: Tensor
    num_keys_N: Tensor
    _groups: dict[int, Group] | None = None

    def group(self, block_size: int) -> Group:
        """Return these decodes as a group for gathering; called once per step, not per layer."""
        if self._groups is None:
            position_N1 = (self.num_keys_N.long() - 1)[:, None]
            self._groups = {block_size: Group(0, self.table_NB.long(), position_N1, block_size)}
        return self._groups[block_size]


class DecodeAttention(Protocol):
    """Kernel for the attention of decodes."""

    def __call__(
        self,
        decodes: Decodes,
        q_NHD: Tensor,
        keys_SPKD: Tensor,
        values_SPKE: Tensor,
        **special: Unpack[Special],
    ) -> Tensor:
        """Return the output [N, H, E]."""
        ...


def by_gathering(
    decodes: Decodes, q_NHD: Tensor, keys_SPKD: Tensor, values_SPKE: Tensor, **special: Unpack[Special]
) -> Tensor:
    """Compute attention on any device by copying all blocks of the tables, including those without keys."""
    group = decodes.group(keys_SPKD.shape[1])
    return attend_group(group, q_NHD, q_NHD, q_NHD, keys_SPKD, values_SPKE, **special)


def by_kernel(
    decodes: Decodes,
    q_NHD: Tensor,
    keys_SPKD: Tensor,
    values_SPKE: Tensor,
    *,
    scaling: float,
    window: int | None,
    softcap: float | None,
    sinks_H: Tensor | None,
    num_splits: int | None = None,
) -> Tensor:
    """Compute attention in place, with the kernel of `decode_kernel.py`; `num_splits`, a power of two, is
    for tests.
    """
    from sundog.runtime.attention.decode_kernel import attend_split, join_splits

    num_requests, num_heads, key_width = q_NHD.shape
    _, block_size, num_key_heads, value_width = values_SPKE.shape
    group = num_heads // num_key_heads
    splits = num_splits or _num_splits(num_requests * num_key_heads, q_NHD.device)
    q_NHD = q_NHD if q_NHD.stride(2) == 1 else q_NHD.contiguous()
    out_NHE = q_NHD.new_empty(num_requests, num_heads, value_width)
    part, top, total = out_NHE, out_NHE, out_NHE
    if splits > 1:
        part = out_NHE.new_empty((num_requests, num_heads, splits, value_width), dtype=torch.float32)
        top, total = part.new_empty((2, num_requests, num_heads, splits))
    widest = max(_power_of_two(key_width), _power_of_two(value_width))
    attend_split[(num_requests, num_key_heads, splits)](
        q_NHD,
        keys_SPKD,
        values_SPKE,
        decodes.table_NB,
        decodes.num_keys_N,
        q_NHD if sinks_H is None else sinks_H,
        part,
        top,
        total,
        scaling,
        softcap or 1.0,
        window or 0,
        q_NHD.stride(0),
        q_NHD.stride(1),
        *keys_SPKD.stride()[:3],
        *values_SPKE.stride()[:3],
        decodes.table_NB.stride(0),
        NUM_HEADS=num_heads,
        GROUP=group,
        GROUP_PADDED=max(16, _power_of_two(group)),
        KEY_WIDTH=key_width,
        KEY_PADDED=max(16, _power_of_two(key_width)),
        VALUE_WIDTH=value_width,
        VALUE_PADDED=max(16, _power_of_two(value_width)),
        BLOCK_SIZE=block_size,
        TILE=TILE_KEYS if widest * q_NHD.element_size() <= 256 else TILE_KEYS // 2,
        NUM_SPLITS=splits,
        HAS_SOFTCAP=softcap is not None,
        HAS_WINDOW=window is not None,
        HAS_SINKS=sinks_H is not None,
    )
    if splits > 1:
        join_splits[(num_requests * num_heads,)](
            part,
            top,
            total,
            out_NHE,
            VALUE_WIDTH=value_width,
            VALUE_PADDED=_power_of_two(value_width),
            NUM_SPLITS=splits,
        )
    return out_NHE


def _num_splits(num_programs: int, device: torch.device) -> int:
    """Return a number of splits that fills the device several times over, so that it never waits long for the
    last one.
    """
    wanted = PROGRAMS_PER_PROCESSOR * _num_processors(device) // num_programs
    return min(_power_of_two(wanted + 1) // 2 or 1, MOST_SPLITS)


@cache
def _num_processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _power_of_two(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()
