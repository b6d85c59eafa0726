"""Forward pass as numbers: its tokens, the slots of their keys, and the sampling rows.

A step consists of parts: neighbouring rows of requests that compute the same number of tokens.

Shapes: T tokens of the step; N requests of a part or span, B blocks of its longest; R sampling rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sundog.runtime.sampling.choices import Choices
from sundog.runtime.step.scoring import Scored

Ints = NDArray[np.int64]

# Decoding requests whose block tables are within a power of two of each other share one padded
# table; below this many blocks the padding costs less than another call.
SMALL_TABLE_BLOCKS = 16


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring rows of a step: N requests with `num_queries` tokens each."""

    start: int
    num_queries: int
    first_position_N: Ints
    table_NB: Ints


@dataclass(frozen=True, slots=True)
class Step:
    """Forward pass: tokens, positions, slots of their keys, and sampling rows.

    `request_ids`, `sample_rows_R` (row of the step), and `choices` go together. A request whose drafts are
    verified has neighbouring sample rows: that of its last known token, then one for each draft. `wiped_B`
    are blocks to fill with zeros first: they may hold NaN, and even a masked slot must hold a number.
    `scored` are the prompt tokens whose log probabilities are requested.
    """

    token_T: Ints
    position_T: Ints
    slot_T: Ints
    spans: tuple[Span, ...]
    request_ids: tuple[str, ...]
    sample_rows_R: Ints
    choices: Choices | None
    wiped_B: Ints
    adapter_T: Ints | None = None
    """Number of each token's adapter, 0 for none; None if no token has one."""
    scored: tuple[Scored, ...] = ()
    row_R: Ints = field(default_factory=lambda: _NONE)
    """Each sampling row's request: its row in the tables, and the count of admissions to that row."""
    admission_R: Ints = field(default_factory=lambda: _NONE)
    fed_F: Ints = field(default_factory=lambda: _NONE)
    """Rows in the tables of requests that decode their last token, the step's first tokens."""


@dataclass(frozen=True, slots=True)
class Part:
    """N requests with `num_queries` tokens each, from `first_N` on; the last `num_samples` of each sample.

    `row_N` are the requests' rows in the block tables, `token_T` their tokens, request after request.
    """

    request_ids: tuple[str, ...]
    row_N: Ints
    first_N: Ints
    num_queries: int
    token_T: Ints
    num_samples: int


@dataclass(frozen=True, slots=True)
class Tables:
    """Block tables of all requests, one row each, with `num_blocks` valid entries."""

    table: Ints
    num_blocks: Ints
    block_size: int

    def slots(self, row_T: Ints, position_T: Ints) -> Ints:
        """Return the slots of keys at these positions. Raises IndexError if a request has no block."""
        block_T, offset_T = np.divmod(position_T, self.block_size)
        if (block_T >= self.num_blocks[row_T]).any():
            raise IndexError(np.unique(row_T[block_T >= self.num_blocks[row_T]]).tolist())
        return self.table[row_T, block_T] * self.block_size + offset_T

    def span(self, part: Part, start: int) -> Span:
        """Return the rows of a part, which begin at `start`."""
        last = int(part.first_N.max()) + part.num_queries - 1
        table_NB = self.table[part.row_N, : last // self.block_size + 1]
        return Span(start, part.num_queries, part.first_N, table_NB)


def decodes(
    ids: tuple[str, ...], row_N: Ints, tables: Tables, num_computed: Ints, last_token: Ints
) -> Iterator[Part]:
    """Yield the decodes, each of its last token, those with tables of similar length side by side."""
    bits = np.frexp(np.maximum(tables.num_blocks[row_N], SMALL_TABLE_BLOCKS) - 0.5)[1]
    for size in np.unique(bits).tolist():
        at = np.flatnonzero(bits == size)
        own = ids if len(at) == len(ids) else tuple(ids[i] for i in at)
        rows = row_N[at]
        yield Part(
            own, rows, first_N=num_computed[rows], num_queries=1, token_T=last_token[rows], num_samples=1
        )


@dataclass(frozen=True, slots=True)
class StepRows:
    """Sampling rows of a step: the row of each one's request, and the position of the token to come."""

    row_R: Ints
    position_R: Ints


def assemble(parts: Sequence[Part], tables: Tables) -> tuple[Step, StepRows]:
    """Return the step that computes these parts in order, and its sampling rows."""
    count_N = np.concatenate([np.full(len(part.row_N), part.num_queries) for part in parts] or [_NONE])
    samples_N = np.concatenate([np.full(len(part.row_N), part.num_samples) for part in parts] or [_NONE])
    row_N = np.concatenate([part.row_N for part in parts] or [_NONE])
    first_N = np.concatenate([part.first_N for part in parts] or [_NONE])
    start_N = np.cumsum(count_N) - count_N
    position_T = np.repeat(first_N - start_N, count_N) + np.arange(count_N.sum())
    end_R = np.repeat(start_N + count_N, samples_N)
    behind_R = np.repeat(np.cumsum(samples_N), samples_N) - np.arange(samples_N.sum())
    sample_rows_R = end_R - behind_R
    starts = np.cumsum([0, *(len(part.token_T) for part in parts)]).tolist()
    step = Step(
        token_T=np.concatenate([part.token_T for part in parts] or [_NONE]),
        position_T=position_T,
        slot_T=tables.slots(np.repeat(row_N, count_N), position_T),
        spans=tuple(tables.span(part, start) for part, start in zip(parts, starts, strict=False)),
        request_ids=tuple(
            name for part in parts for name in part.request_ids for _ in range(part.num_samples)
        ),
        sample_rows_R=sample_rows_R,
        choices=None,
        wiped_B=_NONE,
    )
    return step, StepRows(np.repeat(row_N, samples_N), position_T[sample_rows_R] + 1)


_NONE: Ints = np.empty(0, np.int64)
