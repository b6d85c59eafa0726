"""How the next tokens of a step's requests are chosen, as columns. Numbers only, no device.

Shapes: R requests that sample in this step.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from runtime.sampling.edits import Edit
from runtime.structured.matcher import Matcher

T = TypeVar("T")
Pairs = tuple[tuple[int, T], ...]
"""What few rows have, by the row's number."""


@dataclass(frozen=True, slots=True)
class Choices:
    """How the next tokens of R requests are chosen; `top_k_R` 0 is off.

    `edits` change single logits first. `logprobs` says of how many likeliest tokens a row's log probabilities
    are wanted beside those of its own, `matchers` keep rows to a grammar, `failed` says why a row's request
    cannot sample at all.
    """

    temperature_R: NDArray[np.float32]
    top_k_R: NDArray[np.int64]
    top_p_R: NDArray[np.float32]
    min_p_R: NDArray[np.float32]
    uniform_R: NDArray[np.float64]
    edits: Pairs[Edit] = ()
    logprobs: Pairs[int] = ()
    matchers: Pairs[Matcher] = ()
    failed: Pairs[str] = ()

    def of(self, rows: NDArray[np.int64]) -> "Choices":
        """The choices of some of the rows, in this order."""
        return Choices(
            self.temperature_R[rows],
            self.top_k_R[rows],
            self.top_p_R[rows],
            self.min_p_R[rows],
            self.uniform_R[rows],
            _of(self.edits, rows),
            _of(self.logprobs, rows),
            _of(self.matchers, rows),
            _of(self.failed, rows),
        )


def _of(pairs: Pairs[T], rows: NDArray[np.int64]) -> Pairs[T]:
    if not pairs:
        return ()
    by_row = dict(pairs)
    return tuple((new, by_row[old]) for new, old in enumerate(rows.tolist()) if old in by_row)
