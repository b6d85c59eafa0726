"""Changes to single logits before sampling: bans, biases, penalties.

Shapes: E rows that change, V tokens of the vocabulary; K entries, of all rows one after the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
NO_IDS: Ints = np.empty(0, np.int64)
NO_COUNTS: NDArray[np.int32] = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class Edit:
    """Changes in one row of logits. Ids beyond the vocabulary are ignored.

    `allowed` None allows all tokens. `bias` belongs to `biased`. `seen` are the distinct tokens for
    penalties, and `count` how often the answer has each: 0 for those of the prompt alone. With `forced` only
    that token remains, overriding everything else.
    """

    allowed: Ints | None = None
    banned: Ints = field(default_factory=lambda: NO_IDS)
    biased: Ints = field(default_factory=lambda: NO_IDS)
    bias: Floats = field(default_factory=lambda: np.empty(0, np.float32))
    seen: Ints = field(default_factory=lambda: NO_IDS)
    count: NDArray[np.int32] = field(default_factory=lambda: NO_COUNTS)
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    forced: int | None = None


def apply(logits_EV: Tensor, edits: Sequence[Edit]) -> None:
    """Apply `edits` to float32 logits in place, row by row. O(V) if the edit lists allowed tokens, else
    O(K).
    """
    for row, edit in enumerate(edits):
        if edit.allowed is not None:
            _keep(logits_EV[row], edit.allowed)
    at = _entries([edit.banned for edit in edits], logits_EV)
    if at is not None:
        logits_EV[at.row_K, at.id_K] = float("-inf")
    at = _entries([edit.biased for edit in edits], logits_EV)
    if at is not None:
        logits_EV[at.row_K, at.id_K] += at.of([edit.bias for edit in edits])
    at = _entries([edit.seen for edit in edits], logits_EV)
    if at is not None:
        _penalise(logits_EV, at, edits)
    for row, edit in enumerate(edits):
        if edit.forced is not None:
            logits_EV[row].fill_(float("-inf"))
            logits_EV[row, edit.forced] = 0.0


@dataclass(frozen=True, slots=True)
class Entries:
    """Single logits: row and token of each; `kept_K` are indices into the given ones."""

    row_K: Tensor
    id_K: Tensor
    kept_K: NDArray[np.bool_]

    def of(self, columns: Sequence[NDArray[np.float32] | NDArray[np.int32]]) -> Tensor:
        """Return the numbers of the kept entries."""
        column_K = np.concatenate(columns)[self.kept_K]
        return torch.from_numpy(column_K).to(self.row_K.device, torch.float32)


def _entries(columns: Sequence[Ints], logits_EV: Tensor) -> Entries | None:
    id_K = np.concatenate(columns)
    if not len(id_K):
        return None
    row_K = np.repeat(np.arange(len(columns)), [len(column) for column in columns])
    kept_K = (id_K >= 0) & (id_K < logits_EV.shape[1])
    device = logits_EV.device
    return Entries(
        torch.from_numpy(row_K[kept_K]).to(device), torch.from_numpy(id_K[kept_K]).to(device), kept_K
    )


def _keep(logits_V: Tensor, allowed: Ints) -> None:
    inside = allowed[(allowed >= 0) & (allowed < len(logits_V))]
    ids = torch.from_numpy(inside).to(logits_V.device)
    kept = logits_V[ids]
    logits_V.fill_(float("-inf"))
    logits_V[ids] = kept


def _penalise(logits_EV: Tensor, at: Entries, edits: Sequence[Edit]) -> None:
    """Apply repetition, frequency and presence penalties, in vLLM's order and arithmetic.

    Repetition divides positive logits and multiplies others (Keskar et al., "CTRL", 2019, section 4.1).
    """
    lengths = [len(edit.seen) for edit in edits]

    def spread(values: list[float]) -> Tensor:
        return at.of([np.repeat(np.array(values, np.float32), lengths)])

    value_K = logits_EV[at.row_K, at.id_K]
    repetition_K = spread([edit.repetition for edit in edits])
    value_K = torch.where(value_K > 0, value_K / repetition_K, value_K * repetition_K)
    count_K = at.of([edit.count for edit in edits])
    value_K = value_K - spread([edit.frequency for edit in edits]) * count_K
    value_K = value_K - spread([edit.presence for edit in edits]) * (count_K > 0)
    logits_EV[at.row_K, at.id_K] = value_K
