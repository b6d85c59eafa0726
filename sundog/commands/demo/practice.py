"""Cost of a step, fitted to other questions that are asked before each timed repetition.

The page shows medians over repetitions, so it needs a cost whose sums are such medians. In each repetition of
practice, steps of one kind (the same number of decodes, with or without a prompt's chunk) have a mean time;
the cost of the kind is the median of these means over the repetitions. Within a repetition it is a mean
because TPOT is one; over repetitions it is a median because a disturbed repetition hardly moves it.

The time between two steps (sampling, detokenising, sockets, scheduling) counts towards the second, as in
TPOT. A step also takes longer if a request arrives while it runs, because reading and tokenising share the
cores; in a simulation arrivals cost nothing. Most of that is over when the request reaches the engine, from
where its TTFT counts. So the next step, which computes its prompt, costs as much more as the request waited
for longer than half a usual step, which is what it waits in a simulation; the rest is spread over the steps
of the kind that was met.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

import numpy as np

from sundog.sim.cost.calibrated import Calibrated, fit
from sundog.sim.cost.work import CostModel, Seconds, StepWork
from sundog.sim.record.journal import Observation

StepKind = tuple[int, bool]
"""Number of decodes of a step, and whether it computes a chunk of a prompt."""


def kind_of(work: StepWork) -> StepKind:
    """Return the kind of a step."""
    return work.num_decodes, bool(work.chunks)


@dataclass(frozen=True, slots=True)
class PractisedCost(CostModel):
    """Seconds of a step by its kind; `rest` prices kinds that did not occur in practice."""

    seconds: Mapping[StepKind, float]
    rest: Calibrated

    def step_s(self, work: StepWork) -> float:
        """Return the seconds of one step."""
        if not work.num_tokens:
            return 0.0
        known = self.seconds.get(kind_of(work))
        return self.rest.step_s(work) if known is None else known

    def run_s(self, work: StepWork, num_steps: int) -> Seconds:
        """Return the seconds of each step of a decode run."""
        return np.array(self.few_s(work, num_steps), dtype=np.float64)


def learn(
    rounds: Sequence[Sequence[Observation]], waits_s: Mapping[int, float] | None = None
) -> PractisedCost:
    """Fit the cost to the steps of each repetition of practice.

    Args:
        rounds: Steps of each repetition, in order.
        waits_s: By step that admits requests, how long these waited for the end of the step before, during
            which they arrived, in seconds; a step without an arrival in the one before has none.

    Returns:
        Costs by kind of step.

    Raises:
        ConfigError: There is no step.
    """
    means: dict[StepKind, list[float]] = defaultdict(list)
    for steps in rounds:
        for kind, mean_s in _means_s(steps, waits_s or {}).items():
            means[kind].append(mean_s)
    everything = [(step.work, step.seconds) for steps in rounds for step in steps]
    return PractisedCost({kind: median(each) for kind, each in means.items()}, fit(everything))


def _means_s(steps: Sequence[Observation], waits_s: Mapping[int, float]) -> dict[StepKind, float]:
    """Return the mean time of each kind in one repetition; the sum over all steps stays what it was."""
    follow = [after if after.step == step.step + 1 else None for step, after in pairwise(steps)]
    met = [after is not None and after.step in waits_s for after in [*follow, None]]
    usual: dict[StepKind, list[float]] = defaultdict(list)
    for step, is_met in zip(steps, met, strict=True):
        if not is_met:
            usual[kind_of(step.work)].append(step.seconds)
    seconds: dict[StepKind, list[float]] = defaultdict(list)
    moved_s = 0.0
    for step, is_met in zip(steps, met, strict=True):
        here_s, moved_s = step.seconds + moved_s, 0.0
        if is_met and (kind := kind_of(step.work)) in usual:
            moved_s = waits_s[step.step + 1] - fmean(usual[kind]) / 2
        seconds[kind_of(step.work)].append(here_s - moved_s)
    return {kind: fmean(each) for kind, each in seconds.items()}
