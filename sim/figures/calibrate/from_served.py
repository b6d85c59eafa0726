"""What a server adds to the steps of its engine, from steps that were served and timed from end to end.

    served = slowdown engine + step + token S + chunk N

S tokens sampled, N chunks of prompts. `engine` is what the step takes where nothing else runs: clients, HTTP
and detokenising share the cores with it, and slow it down. Means count, not medians: latencies are sums of
steps.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from actors.core.config import ConfigError
from sim.cost.calibrated import nonnegative_least_squares
from sim.cost.profile import Host
from sim.cost.work import CostModel, StepWork

FEWEST_STEPS = 4
"""Of one kind of steps, to count."""
FEW_DECODES, MORE_AT_ONCE = 12, 8
"""Steps of up to so many decodes are kinds of their own; beyond, so many numbers are one kind."""
FREAK = 10.0
"""A step that takes so many times the median of its kind is left out: what is compiled at first use, say."""
Floats = NDArray[np.float64]
Steps = Sequence[tuple[StepWork, float]]


def fit_host(steps: Steps, cost: CostModel) -> Host:
    """The host's share beyond `cost`; what it adds to a request in front is not known here.

    Kinds of steps count by the relative errors of their means; the sum over all steps is then made right.
    Raises ConfigError for too few steps.
    """
    kinds: dict[tuple[int, int], list[tuple[float, ...]]] = defaultdict(list)
    for work, seconds in steps:
        own_s = cost.step_s(work)
        row = (own_s, 1.0, float(work.num_samples), float(len(work.chunks)), seconds - own_s, seconds)
        kinds[_kind(work)].append(row)
    found = [_usual(np.array(rows)) for rows in kinds.values() if len(rows) >= FEWEST_STEPS]
    if not found:
        raise ConfigError("too few steps were served to tell the host's share: give --no-http")
    weights = np.array([np.sqrt(len(rows)) / rows[:, 5].sum() for rows in found])
    sums = np.array([rows.sum(axis=0) for rows in found])
    features, extra_s = sums[:, :4], sums[:, 4]
    scales = np.maximum(np.linalg.norm(features * weights[:, None], axis=0), 1e-300)
    solution = nonnegative_least_squares(features * weights[:, None] / scales, extra_s * weights) / scales
    explained_s = float((features @ solution).sum())
    if explained_s > 0:
        solution *= max(0.0, float(extra_s.sum())) / explained_s
    slower, step_s, token_s, chunk_s = (float(value) for value in solution)
    return Host(step_s, token_s, chunk_s, slowdown=1 + slower)


def _kind(work: StepWork) -> tuple[int, int]:
    num = work.num_decodes
    decodes = num if num <= FEW_DECODES else FEW_DECODES + -(-(num - FEW_DECODES) // MORE_AT_ONCE)
    return decodes, min(len(work.chunks), 2)


def _usual(rows: Floats) -> Floats:
    """The steps of a kind without freaks."""
    seconds = rows[:, 5]
    kept: Floats = rows[seconds <= FREAK * np.median(seconds)]
    return kept
