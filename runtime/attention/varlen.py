"""Attention of all requests of a step in one call of torch's own FlashAttention, on CUDA.

The kernel reads the cache through block tables where it can; where it cannot, the keys of all
requests are first copied side by side, still without padding.

Shapes: T tokens of the step, R requests, L keys of all of them, B blocks of the longest;
H query heads, K key/value heads, D width; S blocks, P slots a block.
"""

import functools
import inspect
from dataclasses import dataclass

import torch
from torch import Tensor

# FlashAttention 2 reads pages of 256 slots and their multiples; FlashAttention 3 reads any.
FA2_PAGE = 256
MAX_WIDTH = 256


@dataclass(frozen=True, slots=True)
class Sequences:
    """All requests of a step: where their queries begin, how many keys each has, and where.

    `first_query_R1` and `first_key_R1` begin with 0 and end with T and L; all are int32.
    """

    first_query_R1: Tensor
    first_key_R1: Tensor
    num_keys_R: Tensor
    table_RB: Tensor
    max_queries: int
    max_keys: int
    num_keys: int

    def key_slots_L(self, block_size: int) -> Tensor:
        """The slots of all keys, request after request."""
        device = self.table_RB.device
        request_L = torch.repeat_interleave(
            torch.arange(len(self.table_RB), device=device), self.num_keys_R, output_size=self.num_keys
        )
        position_L = torch.arange(self.num_keys, device=device) - self.first_key_R1[request_L]
        block_L = self.table_RB[request_L, position_L // block_size]
        return block_L * block_size + position_L % block_size


@functools.cache
def is_available() -> bool:
    """Whether this torch and this GPU have the call, with block tables and grouped heads."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    has = inspect.signature(varlen_attn).parameters
    needed = ("window_size", "enable_gqa", "seqused_k", "block_table")
    return (
        all(name in has for name in needed)
        and torch.cuda.is_available()
        and torch.cuda.get_device_capability()[0] >= 8
    )


def can_attend(q_THD: Tensor, values_SPKE: Tensor) -> bool:
    """Whether the call can do this layer; other layers take the gathered path."""
    return (
        q_THD.is_cuda
        and q_THD.dtype in (torch.float16, torch.bfloat16)
        and q_THD.shape[-1] == values_SPKE.shape[-1] <= MAX_WIDTH
    )


def attend_all(
    sequences: Sequences,
    q_THD: Tensor,
    keys_SPKD: Tensor,
    values_SPKD: Tensor,
    *,
    scaling: float,
    window: int | None,
) -> Tensor:
    """The output [T, H, D] of all rows of the step."""
    from torch.nn.attention import current_flash_attention_impl
    from torch.nn.attention.varlen import varlen_attn

    block_size = keys_SPKD.shape[1]
    is_fa3 = current_flash_attention_impl() == "FA3"
    attend = functools.partial(
        varlen_attn,
        q_THD.contiguous(),
        cu_seq_q=sequences.first_query_R1,
        max_q=sequences.max_queries,
        max_k=sequences.max_keys,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=q_THD.shape[1] != keys_SPKD.shape[2],
    )
    if is_fa3 or block_size % FA2_PAGE == 0:
        out_THD = attend(
            key=keys_SPKD,
            value=values_SPKD,
            # FlashAttention 3 takes either a table or this, FlashAttention 2 always this.
            cu_seq_k=None if is_fa3 else sequences.first_key_R1,
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
