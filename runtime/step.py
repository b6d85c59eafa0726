"""One step as the device is to compute it: numbers only.

Shapes: T tokens of the step; N requests of a span, B blocks of its longest; R sampling requests.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runtime.sampling.choices import Choices
from runtime.scoring import Scored

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring rows of a step: N requests with `num_queries` tokens each."""

    start: int
    num_queries: int
    first_position_N: Ints
    table_NB: Ints


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass: the tokens, their positions, where their keys go, and which rows sample.

    `request_ids`, `sample_rows_R` (row of the step), and `choices` go together. `wiped_B` are blocks
    to fill with zeros first: they may hold NaN, and even a masked slot must hold a number. `scored` are the
    prompt tokens whose log probabilities are wanted.
    """

    token_T: Ints
    position_T: Ints
    slot_T: Ints
    spans: tuple[Span, ...]
    request_ids: tuple[str, ...]
    sample_rows_R: Ints
    choices: Choices | None
    wiped_B: Ints
    scored: tuple[Scored, ...] = ()
