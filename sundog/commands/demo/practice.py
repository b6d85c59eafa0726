"""Cost of a step, fitted to other questions that are asked before each timed repetition.

The page shows medians over repetitions, so it needs a cost whose sums are such medians. In each repetition of
practice, steps of one kind (the same number of decodes, with or without a prompt's chunk) have a mean time;
the cost of the kind is the median of these means over the repetitions. Within a repetition it is a mean
because TPOT is one; over repetitions it is a median because a disturbed repetition hardly moves it.

The time between two steps (sampling, detokenising, sockets, scheduling) counts towards the second, as in
TPOT. A step takes longer if a request arrives while it runs, because reading and tokenising share the cores.
A simulated step that an arrival meets is longer by as much. Part of an arrival is over when the request
reaches the engine, from where its TTFT counts. Practice shows how much: until the step that it meets has
ended, a request waits for half a usual step in the mean, and for the rest of its own arrival.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from sundog.sim.backend import Pace, instant, to_s, to_ticks
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
    """Seconds of a step by its kind; `rest` prices kinds that did not occur in practice.

    A step during which a request arrives takes `arrival_s` longer, of which the first `lead_s` are over when
    the request reaches the engine; `ArrivalPace` adds them.
    """

    seconds: Mapping[StepKind, float]
    rest: Calibrated
    arrival_s: float = 0.0
    lead_s: float = 0.0

    def step_s(self, work: StepWork) -> float:
        """Return the seconds of one step in which no request arrives."""
        if not work.num_tokens:
            return 0.0
        known = self.seconds.get(kind_of(work))
        return self.rest.step_s(work) if known is None else known

    def run_s(self, work: StepWork, num_steps: int) -> Seconds:
        """Return the seconds of each step of a decode run in which no request arrives."""
        return np.array(self.few_s(work, num_steps), dtype=np.float64)


class ArrivalPace(Pace):
    """Pace of an engine whose server shares its cores: reading a request lengthens the step that it meets."""

    def __init__(self, cost: PractisedCost, arrivals_s: Iterable[float], key: str = "") -> None:
        """`arrivals_s` are the instants at which requests reach the engine, in any order."""
        super().__init__(cost, key)
        self._arrival_s = cost.arrival_s
        self._reads_s = sorted(each - cost.lead_s for each in arrivals_s)

    def end_times_s(
        self, work: StepWork, num_steps: int, now_s: float, continues: bool = False
    ) -> Sequence[float]:
        """Return the end times of `num_steps` equal steps of `work`, longer by the arrivals in each."""
        end, ends = instant(now_s), list[float]()
        for seconds in self.cost.few_s(work, num_steps):
            begin_s = to_s(end)
            num = bisect_left(self._reads_s, begin_s + seconds) - bisect_left(self._reads_s, begin_s)
            end += to_ticks(seconds + num * self._arrival_s)
            ends.append(to_s(end))
        return ends


@dataclass(frozen=True, slots=True)
class Met:
    """Arrivals while one step ran: their number, and the mean seconds that those which the next step admits
    waited for it; None if it admits none of them.
    """

    num: int
    waited_s: float | None


def learn(rounds: Sequence[Sequence[Observation]], met: Mapping[int, Met] | None = None) -> PractisedCost:
    """Fit the cost to the steps of each repetition of practice.

    Args:
        rounds: Steps of each repetition, in order.
        met: By step, the requests that arrived while it ran; other steps had no arrival.

    Returns:
        Costs by kind of step, and of an arrival.

    Raises:
        ConfigError: There is no step.
    """
    met = met or {}
    arrivals = [each for each in (_arrival_s(steps, met) for steps in rounds) if each is not None]
    arrival_s = max(median([whole_s for whole_s, _ in arrivals]), 0.0) if arrivals else 0.0
    left_s = [left_s for _, left_s in arrivals if left_s is not None]
    lead_s = min(max(arrival_s - median(left_s), 0.0), arrival_s) if left_s else 0.0
    means: dict[StepKind, list[float]] = defaultdict(list)
    everything: list[tuple[StepWork, float]] = []
    for steps in rounds:
        seconds: dict[StepKind, list[float]] = defaultdict(list)
        for step in steps:
            num = met[step.step].num if step.step in met else 0
            alone_s = max(step.seconds - num * arrival_s, 0.0)  # noise may be more than a step
            seconds[kind_of(step.work)].append(alone_s)
            everything.append((step.work, alone_s))
        for kind, each in seconds.items():
            means[kind].append(fmean(each))
    return PractisedCost(
        {kind: median(each) for kind, each in means.items()}, fit(everything), arrival_s, lead_s
    )


def _arrival_s(steps: Sequence[Observation], met: Mapping[int, Met]) -> tuple[float, float | None] | None:
    """Return the mean seconds by which an arrival lengthens a step of one repetition, and how much of that a
    request waits for; None where no arrival meets a step of a kind that also goes without.
    """
    usual: dict[StepKind, list[float]] = defaultdict(list)
    for step in steps:
        if step.step not in met:
            usual[kind_of(step.work)].append(step.seconds)
    longer_s, num, left_s = 0.0, 0, list[float]()
    for step in steps:
        if step.step in met and (alone := usual.get(kind_of(step.work))):
            here, usual_s = met[step.step], fmean(alone)
            longer_s, num = longer_s + step.seconds - usual_s, num + here.num
            if here.waited_s is not None:
                left_s.append(here.waited_s - usual_s / 2)
    if not num:
        return None
    return longer_s / num, fmean(left_s) if left_s else None
