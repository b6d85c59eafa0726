"""What each replica of a run was given, and how evenly."""

import numpy as np

from actors.core.records import dataclass
from sim.record.rows import Ints, Rows


@dataclass(frozen=True, slots=True)
class ReplicaFigures:
    """One replica: the requests that it admitted, and their tokens."""

    num_requests: int
    prompt_tokens: int
    output_tokens: int
    prefix_hit_tokens: int
    prefix_hit_rate: float


class Replicas:
    """Sums by replica over requests that come in parts. O(requests + replicas)"""

    def __init__(self, num_replicas: int) -> None:
        self._sums = np.zeros((4, num_replicas), dtype=np.int64)

    def add(self, rows: Rows) -> None:
        """Some more requests; those that no replica admitted count nowhere."""
        admitted = rows.replica >= 0
        where, size = rows.replica[admitted], self._sums.shape[1]
        weights: tuple[Ints, ...] = (rows.num_prompt_tokens, rows.num_output_tokens, rows.prefix_hit_tokens)
        self._sums[0] += np.bincount(where, minlength=size)
        for sums, tokens in zip(self._sums[1:], weights, strict=True):
            np.add.at(sums, where, tokens[admitted])

    @property
    def imbalance(self) -> float | None:
        """The tokens that the busiest replica computed, over the mean: 1 is even. None where nothing was."""
        computed = self._sums[1] + self._sums[2] - self._sums[3]
        return float(computed.max() / computed.mean()) if computed.any() else None

    def figures(self) -> list[ReplicaFigures]:
        """Each replica, in order."""
        return [
            ReplicaFigures(count, prompt, output, hit, hit / max(prompt, 1))
            for count, prompt, output, hit in self._sums.T.tolist()
        ]
