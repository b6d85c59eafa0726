"""Requests that attend together: the same number of query tokens each, their keys read through tables.

Shapes: N requests, Q query tokens of each, B blocks of the longest, L = B * block_size keys.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Keys:
    """Blocks that a layer reads, and the mask of each query (0, or minus infinity)."""

    table_NB: Tensor
    bias_NQL: Tensor


@dataclass(slots=True)
class Group:
    """Token rows `start ... start + N * Q` of a step.

    `fresh`: the group is one request without earlier keys, so that no gathering is needed.
    """

    start: int
    table_NB: Tensor
    positions_NQ: Tensor
    block_size: int
    fresh: bool = False
    _keys: dict[int | None, Keys] = field(default_factory=dict)

    @property
    def rows(self) -> slice:
        return slice(self.start, self.start + self.positions_NQ.numel())

    def keys(self, window: int | None, dtype: torch.dtype) -> Keys:
        """Return the keys for layers with this window; made once per step, not per layer."""
        if window not in self._keys:
            self._keys[window] = self._make_keys(window, dtype)
        return self._keys[window]

    def _make_keys(self, window: int | None, dtype: torch.dtype) -> Keys:
        table_NB = self.table_NB
        device = table_NB.device
        first_block_N = torch.zeros(len(table_NB), dtype=torch.int64, device=device)
        if window is not None:
            first_block_N = (self.positions_NQ[:, 0] - window + 1).clamp_(min=0) // self.block_size
            # The most blocks that Q neighbouring positions with this window can touch.
            reach = (window + self.positions_NQ.shape[1] - 2) // self.block_size + 2
            if reach < table_NB.shape[1]:
                columns_NB = first_block_N[:, None] + torch.arange(reach, device=device)
                table_NB = table_NB.gather(1, columns_NB.clamp_(max=table_NB.shape[1] - 1))
            else:
                first_block_N.zero_()
        num_keys = table_NB.shape[1] * self.block_size
        key_NL = first_block_N[:, None] * self.block_size + torch.arange(num_keys, device=device)
        ahead_NQL = self.positions_NQ[:, :, None] - key_NL[:, None, :]
        seen_NQL = ahead_NQL >= 0
        if window is not None:
            seen_NQL &= ahead_NQL < window
        bias_NQL = torch.zeros(seen_NQL.shape, dtype=dtype, device=device)
        return Keys(table_NB, bias_NQL.masked_fill_(~seen_NQL, float("-inf")))
