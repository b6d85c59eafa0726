"""Search for the cheapest fleet that meets its objectives, in order of their lower bounds on cost.

A candidate is a machine and its settings; the search finds its number of replicas. More replicas are assumed
never to do worse, so that a failing number bounds all smaller ones. Example, at a price of 1 a replica: A
fails with 4, so it costs 5 at least. B passes with 8 and fails with 7: it costs 8. A is tried with 7, and
when it fails, B has won without finding A's own number.

After its first failure a candidate is checked for hopelessness: its requests are played one after another on
one replica. If they miss an objective there, no fleet of this machine meets it. The check is skipped if
prompts have named contents, because a larger fleet may keep more of their prefixes.
"""

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sundog.planning.trial import FleetTrial, TrialResult

if TYPE_CHECKING:
    from sundog.sim.figures.intervals import Interval
    from sundog.sim.figures.named import Objective
    from sundog.sim.figures.sweep.cells import Settings

Results = Callable[[Sequence[FleetTrial]], Iterable[TrialResult]]
"""Function that runs trials and returns their results in the same order."""


@dataclass(slots=True)
class Candidate:
    """Machine with its settings, and bounds on the number of replicas that it needs.

    It fails with `failing` replicas, and passes one sample with `holding`, None while unknown. `tried` has
    the result by replicas and seed.
    """

    settings: "Settings"
    price: float
    """Price of a replica per hour, or its GPUs without prices."""
    num_gpus: int
    most: int
    spare: int = 0
    """Additional replicas, for as many that may fail."""
    failing: int = 0
    holding: int | None = None
    is_found: bool = False
    """True once the number for one sample was found; from then on it grows by one at a time."""
    is_verified: bool = False
    is_variant: bool = False
    """True for a setting that was not requested and is tried because it may need fewer replicas."""
    refused: str | None = None
    alone: TrialResult | None = None
    """Result of requests alone on a replica, if tried."""
    tried: dict[tuple[int, int], TrialResult] = field(default_factory=dict)

    @property
    def doubt(self) -> float | None:
        """Largest relative error of step times in its trials; None without trials."""
        return max((result.doubt for result in self.tried.values()), default=None)

    @property
    def is_hopeless(self) -> bool:
        """True if no number of replicas suffices, because requests alone on one miss the objectives."""
        return self.alone is not None and not self.alone.is_held

    @property
    def bound(self) -> float:
        """Least possible cost; infinite if it cannot meet the objectives."""
        if self.refused is not None or self.is_hopeless or self.failing >= self.most:
            return math.inf
        return self.price_of(self.failing + 1)

    @property
    def bought(self) -> int:
        """Replicas of the smallest fleet known to pass one sample, including the spare ones."""
        assert self.holding is not None
        return self.replicas_of(self.holding, self.spare)

    def price_of(self, count: int) -> float:
        """Return the price of a fleet with `count` replicas left when the spare ones are down."""
        return (count + self.spare) * self.price

    def most_below(self, price: float) -> int:
        """Return the largest fleet that costs less."""
        return min(self.most, math.ceil(price / self.price) - 1 - self.spare)

    def settings_of(self, count: int, spare: int) -> "Settings":
        """Return the settings of a fleet of `count` replicas, and `spare` ones."""
        return self.settings

    def replicas_of(self, count: int, spare: int) -> int:
        """Return the total number of replicas, spares included."""
        return count + spare

    def gpus_of(self, count: int, spare: int) -> int:
        """Return the total number of GPUs, spares included."""
        return (count + spare) * self.num_gpus

    def trial(self, count: int, seed: int = 0, **changes: Any) -> FleetTrial:
        """Return the trial of a fleet with `count` replicas left."""
        return FleetTrial(self.settings, count, seed, **changes)

    @property
    def cost(self) -> float:
        """Price of the smallest fleet known to pass every sample; infinite without one."""
        return self.price_of(self.holding) if self.is_verified and self.holding else math.inf

    def next_replicas(self, below: float) -> int:
        """Return the next number of replicas to try: doubled until one passes, then bisected.

        No fleet is tried that costs as much as `below`: the largest below that comes first, because if it
        fails, so do all others.
        """
        largest = self.most if below == math.inf else self.most_below(below)
        if self.is_found:
            count = self.failing + 1
        elif self.holding is not None:
            count = (self.failing + self.holding + 1) // 2
        else:
            count = max(2 * self.failing, 1) if below == math.inf else largest
        return min(count, largest)

    def tell(self, num_replicas: int, seed: int, result: TrialResult) -> None:
        """Record the result of a trial."""
        self.tried[num_replicas, seed] = result
        if result.refused is not None:
            self.refused = result.refused
        elif not result.is_held:
            self.fails(num_replicas)
        elif seed == 0 and (self.holding is None or num_replicas < self.holding):
            self.holding = num_replicas
        self.is_found = self.is_found or self.holding == self.failing + 1

    def fails(self, num_replicas: int) -> None:
        """Record that this number of replicas is too few."""
        self.failing = max(self.failing, num_replicas)
        if self.holding is not None and self.holding <= self.failing:
            held = [n for (n, seed), result in self.tried.items() if seed == 0 and result.is_held]
            self.holding = min((n for n in held if n > self.failing), default=None)


def intervals(
    objectives: "Sequence[Objective]", results: Sequence[TrialResult], confidence: float
) -> "list[Interval]":
    """Return the interval of each objective's metric over samples, in seconds."""
    import numpy as np

    from sundog.sim.figures.intervals import mean_interval

    return [
        mean_interval(np.array([each.values[o.metric.name] for each in results]), confidence)
        for o in objectives
    ]


@dataclass(slots=True)
class Search:
    """Search for the cheapest candidate that meets `objectives` in every sample and by its interval."""

    objectives: "Sequence[Objective]"
    num_seeds: int
    confidence: float
    results: Results
    at_means: bool = False
    num_at_once: int = 1
    on_trials: Callable[[int], None] = lambda expected: None
    """Function called, before each batch of trials, with the estimated number of trials to follow."""

    def cheapest(self, candidates: Sequence[Candidate]) -> Candidate | None:
        """Search until no candidate can be cheaper than the best passing one; return it, or None.

        Of several with the least cost, the first one is returned, whatever the number of processes.
        """
        while True:
            place, best = min(
                enumerate(candidates), key=lambda each: (each[1].cost, each[0]), default=(0, None)
            )
            most = math.inf if best is None else best.cost
            limits = [most * TIE if number < place else most for number in range(len(candidates))]
            going = sorted(
                (
                    (each, below)
                    for each, below in zip(candidates, limits, strict=True)
                    if each.bound < below and not each.is_verified
                ),
                key=lambda each: each[0].bound,
            )
            if not going:
                return best if most < math.inf else None
            self.on_trials(self._expected([each for each, _ in going]))
            self._advance(going)

    def _expected(self, going: Sequence[Candidate]) -> int:
        """Return how many trials remain if the first candidate passes and each other one fails once."""
        first = going[0]
        between = (first.holding or min(2 * first.failing + 1, first.most)) - first.failing
        return math.ceil(math.log2(max(between, 1))) + self.num_seeds + len(going) - 1

    def _advance(self, chosen: Sequence[tuple[Candidate, float]]) -> None:
        """Advance these candidates by one trial, or by all samples once its size is found: the first one, and
        others only on processes that it leaves idle. They may turn out too expensive. A candidate comes with
        the cost below which it is tried.
        """
        trials: list[tuple[Candidate, int, FleetTrial]] = []
        for candidate, below in chosen:
            if len(trials) >= self.num_at_once:
                break
            if candidate.failing and candidate.holding is None and candidate.alone is None:
                trials.append((candidate, 1, candidate.trial(1, at_means=self.at_means, is_alone=True)))
                continue
            count = candidate.next_replicas(below)
            seeds = [seed for seed in range(self.num_seeds) if (count, seed) not in candidate.tried]
            if (count, 0) not in candidate.tried:
                seeds = [0]
            trials += [
                (candidate, count, candidate.trial(count, seed, at_means=self.at_means)) for seed in seeds
            ]
            if not seeds:
                self._verify(candidate, count)
                break
        made = self.results([trial for _, _, trial in trials])
        for (candidate, count, trial), result in zip(trials, made, strict=True):
            if trial.is_alone:
                candidate.alone = result
            else:
                candidate.tell(count, trial.seed, result)

    def _verify(self, candidate: Candidate, count: int) -> None:
        """Check that the upper ends of the intervals meet the objectives, after every sample has passed."""
        found = [candidate.tried[count, seed] for seed in range(self.num_seeds)]
        held = zip(self.objectives, intervals(self.objectives, found, self.confidence), strict=True)
        if all(math.isnan(i.half_width) or i.high <= each.below_s for each, i in held):
            candidate.is_verified = True
        else:
            candidate.fails(count)
            candidate.is_found = True


TIE = 1 + 1e-9
"""Factor of a cost within which an earlier candidate is preferred."""
MOST_LOAD = 64.0
"""Largest factor of load to try; the smallest is its reciprocal."""


def capacity_search(precision: float, most: float = MOST_LOAD) -> Generator[float, bool, float]:
    """Find the largest passing factor of load: yields factors, and is sent whether each passes.

    It doubles from 1 while the load passes, or halves until one does, and then bisects towards the smallest
    failing factor, to a relative precision of `precision`. It returns 0 if 1 / `most` fails, and `most` if
    that passes.
    """
    low, high = 0.0, 1.0
    if (yield 1.0):
        while True:
            low, high = high, 2 * high
            if high > most:
                return low
            if not (yield high):
                break
    else:
        while not low:
            if high <= 1 / most:
                return 0.0
            if (yield high / 2):
                low = high / 2
            else:
                high /= 2
    while high - low > precision * low:
        middle = (low + high) / 2
        if (yield middle):
            low = middle
        else:
            high = middle
    return low


def capacity_search_near(
    precision: float, low: float, high: float, most: float = MOST_LOAD
) -> Generator[float, bool, float]:
    """Find what `capacity_search` finds, with fewer questions if the result is near `low` to `high`.

    These bounds are two loads of such a search. It yields their middle, and goes on in growing steps until
    one load has passed and one has failed. Then it asks only for loads between these: lighter loads than a
    passing one are assumed to pass, and heavier ones than a failing one to fail.
    """
    load, step = (low + high) / 2, (high - low) / 2
    passing, failing, sizes = 0.0, math.inf, [step]
    while 1 / most <= load <= most:
        if (yield load):
            passing, load = load, load + sizes[-1]
        else:
            failing, load = load, load - sizes[-1]
        if passing and failing < math.inf:
            break
        sizes.append(step if len(sizes) == 1 else 2 * sizes[-1])
    search = capacity_search(precision, most)
    asked = next(search)
    while True:
        is_held = asked <= passing or (asked < failing and (yield asked))
        try:
            asked = search.send(is_held)
        except StopIteration as end:
            found: float = end.value
            return found
