"""Sampling parameters of a step's requests, as columns on the host and on a device.

Shapes: R requests that sample in this step.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sundog.runtime.sampling.edits import Edit
from sundog.runtime.structured.matcher import Matcher

T = TypeVar("T")
Pairs = tuple[tuple[int, T], ...]
"""Values of the rows that have one, with the row numbers."""
Likely = int | tuple[int, ...]
"""Tokens to list besides a row's own: a number of likeliest ones, or given tokens."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Sampling parameters of R requests; `top_k_R` 0 is off.

    `edits` first change single logits. `logprobs` are the log probabilities wanted per row, `matchers`
    restrict rows to a grammar, `failed` has the reason why a row's request cannot sample.
    """

    temperature_R: NDArray[np.float32]
    top_k_R: NDArray[np.int64]
    top_p_R: NDArray[np.float32]
    min_p_R: NDArray[np.float32]
    uniform_R: NDArray[np.float64]
    edits: Pairs[Edit] = ()
    logprobs: Pairs[Likely] = ()
    matchers: Pairs[Matcher] = ()
    failed: Pairs[str] = ()

    @property
    def is_plain(self) -> bool:
        """Whether the columns suffice, so that a device can sample without the host."""
        return not (self.edits or self.logprobs or self.matchers or self.failed)

    def columns(self) -> tuple[NDArray[Any], ...]:
        """Return the columns for the device, in the order of `SamplingColumns`."""
        with np.errstate(divide="ignore"):
            log_min_p_R = np.log(self.min_p_R)
        return self.temperature_R, self.top_k_R, self.top_p_R, log_min_p_R, self.uniform_R

    def of(self, rows: NDArray[np.int64]) -> "Choices":
        """Return the parameters of some rows, in this order."""
        return Choices(
            self.temperature_R[rows],
            self.top_k_R[rows],
            top_p_R=self.top_p_R[rows],
            min_p_R=self.min_p_R[rows],
            uniform_R=self.uniform_R[rows],
            edits=_of(self.edits, rows),
            logprobs=_of(self.logprobs, rows),
            matchers=_of(self.matchers, rows),
            failed=_of(self.failed, rows),
        )


class SamplingColumns(NamedTuple):
    """Numbers of `Choices` on the logits' device; weights below `min_p` of the largest are dropped."""

    temperature_R: Tensor
    top_k_R: Tensor
    top_p_R: Tensor
    log_min_p_R: Tensor
    uniform_R: Tensor

    @classmethod
    def of(cls, choices: Choices, device: torch.device) -> "SamplingColumns":
        return cls(*(torch.from_numpy(column).to(device) for column in choices.columns()))


def _of(pairs: Pairs[T], rows: NDArray[np.int64]) -> Pairs[T]:
    if not pairs:
        return ()
    by_row = dict(pairs)
    return tuple((new, by_row[old]) for new, old in enumerate(rows.tolist()) if old in by_row)
