"""Linear cost model fitted to observed steps, of our own engine or any other.

    seconds = step + tokens T + context C + decodes D + pairs P + chunks N + read R
    seconds = max(that, floor) where the step has a chunk of several tokens

T tokens computed, C context tokens read by decodes, D decoding requests, P (query, key) pairs of prefill
attention, N chunks of prefills and R the tokens of context that these read; all coefficients are at least
zero, because no work makes a step shorter. A log of steps or requests does not separate chunks, and leaves
the last two at zero. The cost of a computed or read token may change beyond some number of them (bends). The
floor is the time a host takes to launch a step's kernels one by one, which recorded decode steps on a GPU
avoid.

An `InRange` also stores the range of step sizes that its model was fitted to.
"""

from collections.abc import Sequence
from dataclasses import astuple, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sundog.actors.core.config import ConfigError
from sundog.actors.core.records import dataclass
from sundog.sim.cost.work import CostModel, Coverage, Seconds, StepWork

Matrix = NDArray[np.float64]
Bends = tuple[tuple[float, float], ...]
Number = TypeVar("Number", float, Matrix)


@dataclass(frozen=True, slots=True)
class Calibrated(CostModel):
    """Fitted coefficients, in seconds per unit.

    Bends are (tokens, seconds for each token beyond), in ascending order: for the tokens of a step, and for
    the context that its decodes read.
    """

    step: float
    per_token: float
    per_context_token: float
    per_decode: float
    per_prefill_pair: float
    per_chunk: float = 0.0
    per_chunk_context_token: float = 0.0
    chunked_floor: float = 0.0
    mixed_floor: float = 0.0
    bends: Bends = ()
    context_bends: Bends = ()

    def step_s(self, work: StepWork) -> float:
        """Return the seconds of one step."""
        seconds = float(self._rest_s(work) + self._context_s(float(work.decode_context_tokens)))
        return max(seconds, self.floor_s(work))

    def floor_s(self, work: StepWork) -> float:
        """Return the least seconds of the step: `mixed_floor` if decodes accompany its chunks.

        None if every request computes one token, such as a prompt that is cached but for its last.
        """
        if is_recorded(work):
            return 0.0
        return self.mixed_floor if work.num_decodes else self.chunked_floor

    def run_s(self, work: StepWork, num_steps: int) -> Seconds:
        """Return the seconds of each step of a decode run."""
        seconds: Seconds = np.add(self._rest_s(work), self._context_s(work.decode_contexts(num_steps)))
        return seconds

    def _context_s(self, tokens: Number) -> Number:
        return _bent(tokens, self.per_context_token, self.context_bends)

    def _rest_s(self, work: StepWork) -> float:
        tokens = work.num_tokens
        if not tokens:
            return 0.0
        seconds = self.step + _bent(float(tokens), self.per_token, self.bends)
        seconds += self.per_decode * work.num_decodes + self.per_prefill_pair * work.prefill_pairs
        seconds += self.per_chunk * len(work.chunks)
        return seconds + self.per_chunk_context_token * chunk_context_tokens(work)


def is_recorded(work: StepWork) -> bool:
    """Return whether every request computes one token: a GPU's engine replays such steps from recordings."""
    return all(new == 1 for new, _ in work.chunks)


def _bent(count: Number, slope: float, bends: Bends) -> Number:
    seconds = slope * count
    for bend, beyond in bends:
        seconds += (beyond - slope) * np.maximum(count - bend, 0.0)
        slope = beyond
    return seconds


def chunk_context_tokens(work: StepWork) -> int:
    """Return the number of keys that the chunks of a step read, their own included."""
    return sum(new + before for new, before in work.chunks)


def _features(work: StepWork) -> tuple[float, ...]:
    return (
        1.0,
        float(work.num_tokens),
        float(work.decode_context_tokens),
        float(work.num_decodes),
        float(work.prefill_pairs),
    )


def fit(observations: Sequence[tuple[StepWork, float]]) -> Calibrated:
    """Fit coefficients by least relative squared errors, scaled to the right total.

    Relative, because a decode step of a millisecond matters to TPOT as much as a prefill step of fifty does
    to TTFT. Scaled, because disturbances only ever make a step longer: without it the steps of a disturbed
    run would add up to less than the run took. Raises ConfigError without an observation that has both a
    duration and tokens.
    """
    rows = [(_features(work), s) for work, s in observations if work.num_tokens and s > 0]
    if not rows:
        raise ConfigError("cannot calibrate: no step has tokens and a duration")
    features = np.array([row for row, _ in rows], dtype=np.float64)
    return fit_sums(features, np.array([s for _, s in rows], dtype=np.float64))


def fit_sums(features: Matrix, seconds: Matrix) -> Calibrated:
    """Fit to rows, each with the formula's five sums over one or more steps, and their duration."""
    weighted = features / seconds[:, None]
    # Equal column norms keep the normal equations well conditioned.
    norms = np.linalg.norm(weighted, axis=0)
    norms[norms == 0] = 1.0
    solution = nonnegative_least_squares(weighted / norms, np.ones(len(seconds))) / norms
    solution *= seconds.sum() / (features @ solution).sum()
    step, token, context, decode, pair = (float(value) for value in solution)
    return Calibrated(step, token, per_context_token=context, per_decode=decode, per_prefill_pair=pair)


def errors(model: Calibrated, observations: Sequence[tuple[StepWork, float]]) -> Matrix:
    """Return the relative error of each observed step: predicted / observed - 1."""
    return np.array([model.step_s(work) / s - 1 for work, s in observations], dtype=np.float64)


def coefficients(model: Calibrated) -> tuple[float, ...]:
    """Return the five coefficients of a log in the order of the formula."""
    return tuple(astuple(model)[:5])


def nonnegative_least_squares(a: Matrix, b: Matrix) -> Matrix:
    """Return the x >= 0 that minimises |a x - b|: Lawson and Hanson (1974), algorithm 23.10."""
    num_columns = a.shape[1]
    x = np.zeros(num_columns)
    active = np.zeros(num_columns, dtype=bool)
    tolerance = 1e-10 * max(float(np.abs(a.T @ b).max()), 1e-300)
    for _ in range(30 * num_columns):
        gradient = a.T @ (b - a @ x)
        gradient[active] = -np.inf
        best = int(np.argmax(gradient))
        if gradient[best] <= tolerance:
            return x
        active[best] = True
        while True:
            trial = np.zeros(num_columns)
            trial[active] = np.linalg.lstsq(a[:, active], b, rcond=None)[0]
            below = active & (trial <= 0)
            if not below.any():
                x = trial
                break
            gap = x[below] - trial[below]
            ratios = np.divide(x[below], gap, out=np.zeros_like(gap), where=gap > 0)
            x = x + float(ratios.min()) * (trial - x)
            active &= x > 1e-14
            x[~active] = 0.0
    return x


@dataclass(frozen=True, slots=True)
class ObservedRange:
    """Sizes of the largest observed step."""

    tokens: float
    context_tokens: float
    decodes: float
    prefill_pairs: float


@dataclass(frozen=True, slots=True)
class InRange(CostModel):
    """`model` with its `measured` range; `coverage` records how far beyond that it was used.

    `doubt` is the error of steps that were not fitted, as a share; 0 if unknown.
    """

    model: Calibrated
    measured: ObservedRange
    coverage: Coverage = field(default_factory=Coverage)
    doubt: float = 0.0

    def step_s(self, work: StepWork) -> float:
        """Return the seconds of one step."""
        self._note(work, work.decode_context_tokens)
        return self.model.step_s(work)

    def run_s(self, work: StepWork, num_steps: int) -> Seconds:
        """Return the seconds of each step of a decode run."""
        self._note(work, work.decode_context_tokens + (num_steps - 1) * work.num_decodes)
        return self.model.run_s(work, num_steps)

    def _note(self, work: StepWork, context_tokens: int) -> None:
        most, note = self.measured, self.coverage.note
        note("tokens of a step", work.num_tokens, 0.0, max(most.tokens, 1.0))
        note("context of its decodes", context_tokens, 0.0, max(most.context_tokens, 1.0))
        note("its decodes", work.num_decodes, 0.0, max(most.decodes, 1.0))
        if work.chunks:
            note("prefill attention", work.prefill_pairs, 0.0, max(most.prefill_pairs, 1.0))
