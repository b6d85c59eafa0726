"""Cheapest fleet, with advice for buyers: its neighbours, its headroom, its lower bound.

Law: every figure comes from trials. Nothing here extrapolates.
"""

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from sundog.actors.config import ConfigError
from sundog.planning.pools import PoolsCandidate, smaller_by_one
from sundog.planning.search import Candidate, Search, capacity_search, capacity_search_near
from sundog.planning.trial import FleetTrial, TrialResult

if TYPE_CHECKING:
    from sundog.planning.fleets import Fleets
    from sundog.sim.figures.named import Objective

HEADROOM_PRECISION = 0.02
FEWEST_WINDOWS = 3
TUNED: dict[str, tuple[int | str, ...]] = {
    "max_num_batched_tokens": (1024, 2048, 4096, 8192, 16384),
    "max_num_seqs": (64, 128, 256, 512, 1024),
    "router": ("least-requests", "least-tokens"),
}
"""Settings that are tried on the winner, to need fewer replicas: two of an engine that trade TTFT for TPOT,
and the fleet's router.
"""
KEEPS_PREFIXES = ("session-affinity", "prefix-aware")
"""Routers that are also tried if prompts repeat."""
AFTERWARDS = 20
"""Approximate number of trials after the search for the winner; for progress only."""


@dataclass(frozen=True, slots=True)
class Resized:
    """Replicas of an ideal autoscaler in each window of `window_s` seconds.

    `span_s` is the length of the traffic; the last window may end after it.
    """

    window_s: float
    span_s: float
    replicas: tuple[int, ...]

    @property
    def replica_hours(self) -> float:
        """Running time of its replicas in hours; the last window ends with the traffic."""
        ends = (min((number + 1) * self.window_s, self.span_s) for number in range(len(self.replicas)))
        pairs = zip(self.replicas, ends, strict=True)
        return sum(n * (end - i * self.window_s) for i, (n, end) in enumerate(pairs)) / 3600


class SizeRange(NamedTuple):
    """Range of sizes that a fleet needs if steps are as short, and as long, as the cost model's error allows.

    A size is a `count` of `Candidate.trial`; `most` is None if the largest fleet fails. `Candidate.doubt` is
    the error.
    """

    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Advice:
    """Cheapest fleet, with advice for buyers.

    `winner` is None if no fleet meets the objectives; `cheaper` is the most expensive failing fleet that
    would cost less, with the result of all its requests. `headroom` is the largest factor of load at which
    the winner still passes a sample, None if all its requests arrive at once. `at_means` is the fleet that
    requests of mean lengths would need, if there is one. `tuned` has the settings that were tried on the
    winner's machine with fewer replicas, and `resized` the perfect autoscaler, if the traffic is long enough
    for its windows.
    """

    candidates: list[Candidate]
    winner: Candidate | None = None
    cheaper: tuple[Candidate, int, TrialResult] | None = None
    headroom: float | None = None
    at_means: Candidate | None = None
    tuned: dict[str, tuple[int | str, ...]] = field(default_factory=dict)
    resized: Resized | None = None
    ranges: dict[int, SizeRange] = field(default_factory=dict)
    """Ranges of sizes of the candidates that meet the objectives, by index in `candidates`."""

    def range_of(self, candidate: Candidate) -> "SizeRange | None":
        """Return the range of a candidate's size; None if it was not computed."""
        return next((r for place, r in self.ranges.items() if self.candidates[place] is candidate), None)

    @property
    def held(self) -> list[TrialResult]:
        """Trials of the winner, one per sample."""
        if self.winner is None:
            return []
        tried = sorted(self.winner.tried.items(), key=lambda item: item[0])
        return [result for (count, _), result in tried if count == self.winner.holding]


def advise(
    made: "Fleets",
    objectives: "Sequence[Objective]",
    num_seeds: int,
    confidence: float,
    fresh: Callable[[], list[Candidate]],
    pools: Callable[[], Sequence[Candidate]],
    tuned: dict[str, tuple[int | str, ...]],
    window_s: float,
) -> Advice:
    """Search for the cheapest fleet, then try its neighbours.

    Fleets of two `pools` are tried after equal replicas, and the settings in `tuned` on the winner of these.
    """

    def search(num_seeds: int, at_means: bool = False) -> Search:
        return Search(
            objectives,
            num_seeds,
            confidence=confidence,
            results=made.results,
            at_means=at_means,
            num_at_once=made.num_processes,
            on_trials=lambda expected: made.expect(expected + (0 if at_means else AFTERWARDS)),
        )

    tried = fresh()
    many = search(num_seeds)
    winner = many.cheapest(tried)
    tuned = tuned if winner is not None and winner.holding != 1 else {}
    if winner is not None and tuned:
        tried += _tuned(winner, tuned)
        winner = many.cheapest(tried) or winner
    winner = _with_pools(many, tried, pools(), winner)
    if winner is None:
        return Advice(tried)
    cheaper = _next_cheaper(made, tried, winner)
    made.expect(AFTERWARDS // 2)
    has_rate = winner.tried[winner.holding or 1, 0].span_s > 0
    factor = headroom(made, winner, 0, HEADROOM_PRECISION) if has_rate else None
    at_means = search(1, at_means=True).cheapest(fresh())
    bound = resized(made, winner, window_s)
    ranges = {
        place: size_range(made, each, objectives) for place, each in enumerate(tried) if each.is_verified
    }
    return Advice(
        tried,
        winner,
        ranges=ranges,
        cheaper=cheaper,
        headroom=factor,
        at_means=at_means,
        tuned={} if isinstance(winner, PoolsCandidate) else tuned,
        resized=bound,
    )


def _with_pools(
    many: Search, tried: list[Candidate], pools: Sequence[Candidate], winner: Candidate | None
) -> Candidate | None:
    pools = [each for each in pools if winner is None or each.bound < winner.cost]
    tried += pools
    winner = many.cheapest(tried) if pools else winner
    while isinstance(winner, PoolsCandidate) and (fewer := smaller_by_one(winner)):
        tried += fewer
        if (smaller := many.cheapest(tried)) is winner:
            break
        winner = smaller
    return winner


def _tuned(winner: Candidate, tuned: dict[str, tuple[int | str, ...]]) -> list[Candidate]:
    """Return the winner's machine with one setting changed, as candidates for fewer replicas."""
    machine = winner.price, winner.num_gpus, winner.most
    return [
        Candidate({**winner.settings, name: value}, *machine, winner.spare, is_variant=True)
        for name, values in tuned.items()
        for value in values
    ]


def _next_cheaper(
    made: "Fleets", tried: Sequence[Candidate], winner: Candidate
) -> tuple[Candidate, int, TrialResult] | None:
    """Return the most expensive failing fleet below the winner's price, with its failed sample in full."""
    failed = [
        (each.price_of(count), -number, count, seed)
        for number, each in enumerate(tried)
        for (count, seed), result in each.tried.items()
        if not result.is_held and result.refused is None and each.price_of(count) < winner.cost
    ]
    if not failed:
        return None
    _, number, count, seed = max(failed)
    (result,) = made.results([tried[-number].trial(count, seed, to_the_end=True)])
    return tried[-number], count, result


def headroom(made: "Fleets", fleet: Candidate, seed: int, precision: float) -> float:
    """Return the largest factor of load at which a fleet passes one sample."""
    search = capacity_search(precision)
    next(search)
    load = search.send(True)  # It holds this load: it was chosen for it.
    while True:
        (result,) = made.results([fleet.trial(fleet.holding or 1, seed, load=load)])
        try:
            load = search.send(result.is_held)
        except StopIteration as end:
            factor: float = end.value
            return factor


def size_range(made: "Fleets", fleet: Candidate, objectives: "Sequence[Objective]") -> SizeRange:
    """Return the range of replicas for the hardest sample, with the shortest and the longest likely steps."""
    count, doubt = fleet.holding or 1, fleet.doubt or 0.0
    if not doubt:
        return SizeRange(count, count)
    seed = hardest_draw(fleet, count, objectives)

    def holds(number: int, side: int) -> bool:
        (result,) = made.results([fleet.trial(number, seed, doubt=side * doubt)])
        return result.is_held

    def bisected(low: int, high: int, side: int) -> int:
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if holds(middle, side) else (middle, high)
        return high

    # The number is near: steps that differ by a few percent change a fleet by about as much.
    least, step = count, 1
    while least > 1 and holds(max(least - step, 1), -1):
        least, step = max(least - step, 1), 2 * step
    least = bisected(max(least - step, 0), least, -1)
    if holds(count, 1):
        return SizeRange(least, count)
    failing, step = count, 1
    while failing < fleet.most:
        number = min(failing + step, fleet.most)
        if holds(number, 1):
            return SizeRange(least, bisected(failing, number, 1))
        failing, step = number, 2 * step
    return SizeRange(least, None)


def hardest_draw(fleet: Candidate, count: int, objectives: "Sequence[Objective]") -> int:
    """Return the seed of the passing sample that is nearest to the limits of its objectives."""

    def nearness(seed: int) -> float:
        values = fleet.tried[count, seed].values
        return max(values.get(each.metric.name, 0.0) / each.below_s for each in objectives)

    return max((seed for number, seed in fleet.tried if number == count), key=nearness)


def resized(made: "Fleets", fleet: Candidate, window_s: float) -> Resized | None:
    """Find the fewest replicas for each window of the first sample, all windows in parallel.

    A window without arrivals needs none. A window in which the whole fleet fails gets the whole fleet.
    Returns None if the traffic is shorter than three windows, or the fleet has one replica or two pools.
    """
    most = fleet.holding or 1
    span_s = fleet.tried[most, 0].span_s
    if isinstance(fleet, PoolsCandidate) or most == 1 or span_s < FEWEST_WINDOWS * window_s:
        return None
    count = math.floor(span_s / window_s) + 1
    low, high = [0] * count, [most] * count
    empty: set[int] = set()
    while open_now := [i for i in range(count) if high[i] - low[i] > 1]:
        middle = {i: (low[i] + high[i]) // 2 for i in open_now}
        trials = [fleet.trial(middle[i], window_s=(i * window_s, (i + 1) * window_s)) for i in open_now]
        for i, result in zip(open_now, made.results(trials), strict=True):
            if not result.num_requests and result.is_held:
                empty.add(i)
                low[i] = high[i] = 0
            elif result.is_held:
                high[i] = middle[i]
            else:
                low[i] = middle[i]
    return Resized(window_s, span_s, tuple(0 if i in empty else each for i, each in enumerate(high)))


class LargestLoad(NamedTuple):
    """Largest load of a sample, and the number of its unanswered requests there."""

    factor: float
    requests_per_s: float
    num_unanswered: int
    num_requests: int


COARSE = 16.0
"""Factor by which the first sample's search is less precise until the other samples begin."""


def largest_loads(made: "Fleets", num_replicas: int, num_seeds: int, precision: float) -> "list[LargestLoad]":
    """Return the largest factor of load of each sample, and its requests per second.

    The first sample is searched coarsely. From there the others are near, and all are searched in parallel,
    one trial of each at a time.

    Raises:
        ConfigError: Requests are refused at any load, or all arrive at once.
    """
    results: list[dict[float, TrialResult]] = [{} for _ in range(num_seeds)]

    def run(searches: dict[int, Generator[float, bool, float]]) -> dict[int, float]:
        """Return the result of each search. A load that was tried is not tried again."""
        asked = {seed: next(search) for seed, search in searches.items()}
        found: dict[int, float] = {}
        while True:
            for seed, search in searches.items():
                try:
                    while seed not in found and asked[seed] in results[seed]:
                        asked[seed] = search.send(results[seed][asked[seed]].is_held)
                except StopIteration as end:
                    found[seed] = end.value
            if len(found) == len(searches):
                return found
            trials = [
                FleetTrial({}, num_replicas, seed, load) for seed, load in asked.items() if seed not in found
            ]
            for trial, result in zip(trials, made.results(trials), strict=True):
                results[trial.seed][trial.load] = _with_rate(result)

    near = 0.0
    if num_seeds > 1:
        near = run({0: capacity_search(min(COARSE * precision, 0.5))})[0]
    failing = [load for load, result in results[0].items() if not result.is_held]
    searches = {seed: capacity_search(precision) for seed in range(num_seeds)}
    if near and failing:
        others = range(1, num_seeds)
        searches |= {seed: capacity_search_near(precision, near, min(failing)) for seed in others}
    factors = run(searches)
    return [_largest(results[seed], factors[seed]) for seed in range(num_seeds)]


def _with_rate(result: TrialResult) -> TrialResult:
    """Return a result if its requests arrive at a rate. Raises ConfigError otherwise."""
    if result.refused is not None:
        raise ConfigError(result.refused)
    if not result.span_s:
        raise ConfigError(
            "all requests arrive at once, so the load cannot be raised: give a trace with arrival times, or"
            " --request-rate"
        )
    return result


def _largest(results: dict[float, TrialResult], factor: float) -> LargestLoad:
    """Return a sample's largest load, with the figures of its trial there. Raises ConfigError if none holds
    since requests are refused.
    """
    if factor:
        result = results[factor]
        return LargestLoad(
            factor, result.num_requests / result.span_s, result.num_unfinished, result.num_requests
        )
    last = list(results.values())[-1]
    if last.turned_away is not None:
        raise ConfigError(f"no load holds: {last.turned_away}")
    return LargestLoad(0.0, 0.0, 0, last.num_requests)
