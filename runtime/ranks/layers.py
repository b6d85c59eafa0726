"""Layers of which a rank holds its share, and what they need of the other ranks.

Each keeps the library's own module as `part`, with its share of the weights: what packs plain linear layers,
or computes them by kernels, finds them there.

Shapes: R rows, I inputs and O outputs of a layer, V tokens of the vocabulary, W width of the states.
"""

from torch import Tensor, nn

from runtime.ranks.group import Group


class SummedLinear(nn.Module):
    """Takes this rank's share of the inputs [..., I of it] to the sum over ranks [..., O].

    With `splits` it is given all inputs, and takes its share of them. The bias is added once, behind the sum.
    """

    def __init__(self, part: nn.Linear, group: Group, *, splits: bool) -> None:
        super().__init__()
        self.bias: nn.Parameter | None = part.bias
        part.register_parameter("bias", None)
        self.part = part
        self._group = group
        self._splits = splits

    def forward(self, x: Tensor) -> Tensor:
        if self._splits:
            width = -(-x.shape[-1] // self._group.rank.count)
            x = x[..., self._group.rank.number * width :][..., :width]
        out: Tensor = self.part(x)
        self._group.sum(out)
        return out if self.bias is None else out + self.bias


class GatheredLinear(nn.Module):
    """Takes [..., I] to this rank's share of the outputs, and gathers all [..., O]."""

    def __init__(self, part: nn.Linear, group: Group, num_out: int) -> None:
        super().__init__()
        self.part = part
        self._group = group
        self._num_out = num_out

    def forward(self, x: Tensor) -> Tensor:
        return self._group.gather_columns(self.part(x), self._num_out)


class SummedEmbedding(nn.Module):
    """The states [..., W] of tokens, each of which one rank knows: `part` has rows from `start` on."""

    def __init__(self, part: nn.Embedding, group: Group, start: int) -> None:
        super().__init__()
        self.part = part
        self._group = group
        self._start, self._num_rows = start, part.weight.shape[0]

    def forward(self, ids: Tensor) -> Tensor:
        row = ids - self._start
        is_elsewhere = (row < 0) | (row >= self._num_rows)
        out: Tensor = self.part(row.masked_fill(is_elsewhere, 0)).masked_fill(is_elsewhere[..., None], 0)
        self._group.sum(out)
        return out
