"""Attention of all requests of a step in one call of torch's own FlashAttention, on CUDA.

The kernel reads the cache through block tables if it can; otherwise the keys of all requests are first copied
side by side, without padding.

Shapes: T tokens of the step, R requests, L keys of all of them, B blocks of the longest; H query heads, K
key/value heads, D width; S blocks, P slots a block.
"""

import functools
import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# FlashAttention 2 reads pages of 256 slots and their multiples; FlashAttention 3 reads any.
FA2_PAGE = 256
MAX_WIDTH = 256
WIDTH_STEP = 8


@dataclass(slots=True)
class Sequences:
    """Requests of a step: where their queries begin, and the number and place of their keys.

    `first_query_R1` and `first_key_R1` begin with 0 and end with T and L; all are int32.
    """

    first_query_R1: Tensor
    first_key_R1: Tensor
    num_keys_R: Tensor
    table_RB: Tensor
    max_queries: int
    max_keys: int
    num_keys: int
    _slots_L: Tensor | None = None

    def key_slots_L(self, block_size: int) -> Tensor:
        """Return the slots of all keys, request after request; made once per step, not per layer."""
        if self._slots_L is None:
            device = self.table_RB.device
            request_L = torch.repeat_interleave(
                torch.arange(len(self.table_RB), device=device), self.num_keys_R, output_size=self.num_keys
            )
            position_L = torch.arange(self.num_keys, device=device) - self.first_key_R1[request_L]
            block_L = self.table_RB[request_L, position_L // block_size]
            self._slots_L = block_L * block_size + position_L % block_size
        return self._slots_L


@functools.cache
def parameters() -> frozenset[str]:
    """Return the parameters of torch's call; none if this torch has no such call, or no GPU that it
    supports.
    """
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return frozenset()
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] < 8:
        return frozenset()
    return frozenset(inspect.signature(varlen_attn).parameters)


def is_available() -> bool:
    """Return whether torch has a call with causal order and windows."""
    return "window_size" in parameters()


def reads_tables(block_size: int) -> bool:
    """Return whether the call reads blocks of this size through block tables, without copying keys."""
    has_tables = {"block_table", "seqused_k"} <= parameters()
    return has_tables and (block_size % FA2_PAGE == 0 or _is_fa3())


def _is_fa3() -> bool:
    from torch.nn.attention import current_flash_attention_impl

    return current_flash_attention_impl() == "FA3"


def can_attend(q_THD: Tensor, values_SPKE: Tensor) -> bool:
    """Return whether the call supports this layer; other layers are gathered."""
    width = q_THD.shape[-1]
    return (
        q_THD.is_cuda
        and q_THD.dtype in (torch.float16, torch.bfloat16)
        and width == values_SPKE.shape[-1] <= MAX_WIDTH
        and width % WIDTH_STEP == 0
    )


def attend_all(
    sequences: Sequences,
    q_THD: Tensor,
    keys_SPKD: Tensor,
    values_SPKD: Tensor,
    scaling: float,
    window: int | None,
) -> Tensor:
    """Return the output [T, H, D] of all rows of the step."""
    from torch.nn.attention.varlen import varlen_attn

    block_size = keys_SPKD.shape[1]
    # Without the parameter, the kernel takes grouped heads as they are.
    grouped: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in parameters() else {}
    attend = functools.partial(
        varlen_attn,
        q_THD.contiguous(),
        cu_seq_q=sequences.first_query_R1,
        max_q=sequences.max_queries,
        max_k=sequences.max_keys,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
        **grouped,
    )
    if reads_tables(block_size):
        out_THD = attend(
            key=keys_SPKD,
            value=values_SPKD,
            # FlashAttention 3 takes either a table or this, FlashAttention 2 always this.
            cu_seq_k=None if _is_fa3() else sequences.first_key_R1,
            seqused_k=sequences.num_keys_R,
            block_table=sequences.table_RB,
        )
    else:
        slots_L = sequences.key_slots_L(block_size)
        out_THD = attend(
            key=keys_SPKD.flatten(0, 1).index_select(0, slots_L),
            value=values_SPKD.flatten(0, 1).index_select(0, slots_L),
            cu_seq_k=sequences.first_key_R1,
        )
    assert isinstance(out_THD, Tensor)
    return out_THD
