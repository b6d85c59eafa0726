"""A cost model from a log of requests alone: when each began and ended, and its numbers of tokens.

Nothing is known of steps, but a request that decodes gets a token in each: its n - 1 steps took
from its first token to its last, and what they computed follows from the other requests of that time. The
linear model (`sim.cost.calibrated`) sums over steps, so each such request gives one equation in its
coefficients. Others are taken to decode evenly between their first and last token, and to prefill evenly
between being scheduled and their first.

Requests that were preempted waited in between. A log does not say which, so those that took one and a half
times as long as the fit says are left out, and the rest is fitted anew.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from actors.core.config import ConfigError
from actors.core.records import dataclass
from sim.cost.calibrated import Calibrated, coefficients, fit_sums

Floats = NDArray[np.float64]
TOO_LONG, NUM_FITS = 1.5, 5
ROWS_AT_ONCE = 256
"""Requests whose neighbours are summed at once; bounds memory."""


@dataclass(frozen=True, slots=True)
class Observed:
    """One element per finished request: instants in seconds of one clock, tokens as float64."""

    scheduled_s: Floats
    first_token_s: Floats
    last_token_s: Floats
    num_prompt_tokens: Floats
    num_output_tokens: Floats


class Fitted(NamedTuple):
    """The model, and how far it is off: the median relative error of how long requests decoded.

    `num_left_out` took too long for it, as those do that were preempted.
    """

    model: Calibrated
    median_error: float
    num_left_out: int


def fit_requests(observed: Observed) -> Fitted:
    """The coefficients that explain best how long requests decoded; O(requests squared).

    Raises ConfigError without a request that got more than one token.
    """
    seconds = observed.last_token_s - observed.first_token_s
    decoded = (observed.num_output_tokens > 1) & (seconds > 0)
    if not decoded.any():
        raise ConfigError("nothing to calibrate from: no request with more than one token")
    rows = np.flatnonzero(decoded)
    parts = [
        _features(observed, rows[start : start + ROWS_AT_ONCE]) for start in range(0, len(rows), ROWS_AT_ONCE)
    ]
    features, taken = np.concatenate(parts), seconds[rows]
    for _ in range(NUM_FITS):
        model = fit_sums(features, taken)
        explained = features @ np.array(coefficients(model))
        kept = taken <= TOO_LONG * explained
        if kept.all() or kept.sum() < len(taken) / 2:
            break
        features, taken = features[kept], taken[kept]
    error = float(np.median(np.abs(features @ np.array(coefficients(model)) / taken - 1)))
    return Fitted(model, error, len(rows) - len(taken))


def _features(observed: Observed, rows: NDArray[np.int64]) -> Floats:
    """Steps, tokens, context, decodes and pairs while these requests decoded, each summed."""
    first, last = observed.first_token_s, observed.last_token_s
    begin, end = first[rows, None], last[rows, None]
    later = np.maximum(observed.num_output_tokens - 1, 0.0)
    rate = np.divide(later, last - first, out=np.zeros_like(later), where=last > first)
    from_s, to_s = np.maximum(begin, first), np.minimum(end, last)
    decodes = rate * np.maximum(to_s - from_s, 0.0)
    context = observed.num_prompt_tokens + 1 + rate * ((from_s + to_s) / 2 - first)
    prefill_s = np.maximum(first - observed.scheduled_s, 1e-9)
    overlap_s = np.minimum(end, first) - np.maximum(begin, observed.scheduled_s)
    share = np.clip(overlap_s, 0.0, None) / prefill_s
    prompt = observed.num_prompt_tokens
    num_decodes = decodes.sum(axis=1)
    return np.stack(
        (
            later[rows],
            num_decodes + (share * prompt).sum(axis=1),
            (decodes * context).sum(axis=1),
            num_decodes,
            (share * (prompt * (prompt + 1) / 2)).sum(axis=1),
        ),
        axis=1,
    )
