"""How far figures of a finite run may lie from those of another run of the same server."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from sim.figures.statistics.distribution import distribution
from sim.figures.validate.measured import THROUGHPUT, Figures, Floats

KINDS = ("mean", "p50", "p90", "p99")
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
NUM_BATCHES = 10
REPEATED = 0.013
"""Two identical runs of one server differ by 0.7 % in E2E and TPOT and by 1.3 % in TTFT."""
RARE = {"ttft p99": 0.35, "e2e p99": 0.2}
"""How much higher a percentile of rare things may be: a server's first steps load code and allocate
memory, its front end collects garbage; nothing of that is simulated (Llama-2 servers whose first
hundred prompts miss the prefix cache have a p99 TTFT up to 35 % above)."""


def figures_within(values: Mapping[str, Floats], deviations: float) -> Figures:
    """Mean and percentiles of values in order of arrival, moved by this many standard deviations.

    The deviation is that of the figure's estimate from the figures of ten batches in a row, because
    requests that wait together are alike (batch means), and for percentiles at least that of their
    rank, sqrt(n q (1 - q)), whatever the distribution.
    """
    figures: Figures = {}
    for name, own in values.items():
        if name == THROUGHPUT:
            figures |= {name: float(own[0])} if len(own) else {}
        elif len(own):
            figures |= {f"{name} {kind}": _within(name, kind, own, deviations) for kind in KINDS}
    return figures


def _within(name: str, kind: str, own: Floats, deviations: float) -> float:
    exact = _figure(kind, own)
    if not deviations:
        return exact
    moved = exact
    if kind in QUANTILES:
        q = QUANTILES[kind]
        moved = float(
            np.quantile(own, min(max(q + deviations * math.sqrt(q * (1 - q) / len(own)), 0.0), 1.0))
        )
    if len(own) >= NUM_BATCHES:
        batches = [_figure(kind, part) for part in np.array_split(own, NUM_BATCHES)]
        by_batch = exact + deviations * float(np.std(batches, ddof=1)) / math.sqrt(NUM_BATCHES)
        moved = max(moved, by_batch) if deviations > 0 else min(moved, by_batch)
    away = 1 + math.copysign(REPEATED, deviations)
    if deviations > 0:
        away += RARE.get(f"{name} {kind}", 0.0)
    return max(moved, 0.0) * away


def _figure(kind: str, own: Floats) -> float:
    found = distribution(own)
    assert found is not None
    figure: float = getattr(found, kind)
    return figure


def span(runs: Sequence[Figures]) -> tuple[Figures, Figures]:
    """The least and the largest of each figure."""
    names = runs[0].keys()
    low = {name: min(run[name] for run in runs if name in run) for name in names}
    return low, {name: max(run[name] for run in runs if name in run) for name in names}
