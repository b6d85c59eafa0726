"""A layer with low-rank changes beside it: each row gets those of its own adapter, or none.

Shapes: N rows of a pass in all, M of them with one adapter; I inputs, O outputs, R rank.
"""

from dataclasses import dataclass, field

from torch import Tensor, nn


@dataclass(slots=True)
class Rows:
    """Which rows of the pass under way have which adapter, by its number; all adapted layers share it."""

    of_adapter: dict[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """What an adapter adds to one layer: `up @ (down @ x)`, with its scale in `up`."""

    down_RI: Tensor
    up_OR: Tensor


class AdaptedLinear(nn.Module):
    """A linear layer, whichever way it is computed, and the changes of every adapter that has one for it.

    Rows without an adapter get exactly what the layer gives; those with one do not see each other's.
    """

    def __init__(self, base: nn.Module, rows: Rows) -> None:
        super().__init__()
        self.base = base
        self.changes: dict[int, Change] = {}
        self.was_called = False
        self._rows = rows

    @property
    def weight(self) -> object:
        """The layer's own, for code of the library that asks for its type."""
        return self.base.weight

    def forward(self, x: Tensor) -> Tensor:
        self.was_called = True
        out: Tensor = self.base(x)
        adapted = [
            (number, rows_M) for number, rows_M in self._rows.of_adapter.items() if number in self.changes
        ]
        if not adapted:
            return out
        x_NI = x.reshape(-1, x.shape[-1])
        # A copy: the layer's output may be a part of a product that others share.
        out_NO = out.reshape(-1, out.shape[-1]).clone()
        for number, rows_M in adapted:
            change = self.changes[number]
            low_MR = x_NI.index_select(0, rows_M) @ change.down_RI.T
            out_NO.index_add_(0, rows_M, low_MR @ change.up_OR.T)
        return out_NO.view(out.shape)
