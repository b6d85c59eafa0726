"""The cheapest fleet, and what one wants to know before one buys it: its neighbours, its headroom, its bound.

Law: every figure is that of trials. Nothing here extrapolates.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from sundog.actors.config import ConfigError
from sundog.planning.pools import PoolsCandidate, smaller_by_one
from sundog.planning.search import Candidate, Search, capacity_search
from sundog.planning.trial import FleetTrial, TrialResult

if TYPE_CHECKING:
    from sundog.planning.fleets import Fleets
    from sundog.sim.figures.named import Objective

HEADROOM_PRECISION = 0.02
FEWEST_WINDOWS = 3
TUNED: dict[str, tuple[int, ...]] = {
    "max_num_batched_tokens": (1024, 2048, 4096, 8192, 16384),
    "max_num_seqs": (64, 128, 256, 512, 1024),
}
"""Settings of an engine that trade TTFT for TPOT: each value is tried on the winner with fewer replicas."""
AFTERWARDS = 20
"""The number of trials, about, that follow the search for the winner; for progress alone."""


@dataclass(frozen=True, slots=True)
class Resized:
    """A fleet whose size follows the load without delay: its replicas in each window of `window_s`.

    `span_s` is the length of the traffic, which the last window may reach beyond.
    """

    window_s: float
    span_s: float
    replicas: tuple[int, ...]

    @property
    def replica_hours(self) -> float:
        """The time that its replicas run, in hours; the last window ends with the traffic."""
        ends = (min((number + 1) * self.window_s, self.span_s) for number in range(len(self.replicas)))
        pairs = zip(self.replicas, ends, strict=True)
        return sum(n * (end - i * self.window_s) for i, (n, end) in enumerate(pairs)) / 3600


@dataclass(frozen=True, slots=True)
class Advice:
    """The cheapest fleet, and what one wants to know before one buys it.

    `winner` is None if no fleet holds; `cheaper` is the most expensive one that fails and would cost less,
    with the result of all its requests. `headroom` is the largest factor of load at which the winner still
    holds a draw, None if all its requests arrive at once. `at_means` is the fleet that requests of mean
    lengths would have asked for, if there is one. `tuned` has the settings that were tried on the winner's
    machine with fewer replicas, and `resized` the perfect autoscaler, if the traffic is longer than some of
    its windows.
    """

    candidates: list[Candidate]
    winner: Candidate | None = None
    cheaper: tuple[Candidate, int, TrialResult] | None = None
    headroom: float | None = None
    at_means: Candidate | None = None
    tuned: tuple[str, ...] = ()
    resized: Resized | None = None

    @property
    def held(self) -> list[TrialResult]:
        """The trials of the winner, one a draw."""
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
    tuned: tuple[str, ...],
    window_s: float,
) -> Advice:
    """Search for the cheapest fleet, then look at its neighbours.

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
    tuned = tuned if winner is not None and winner.holding != 1 else ()
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
    return Advice(
        tried,
        winner,
        cheaper=cheaper,
        headroom=factor,
        at_means=at_means,
        tuned=() if isinstance(winner, PoolsCandidate) else tuned,
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


def _tuned(winner: Candidate, names: Sequence[str]) -> list[Candidate]:
    """Return the winner's machine with one setting changed, as candidates for fewer replicas."""
    machine = winner.price, winner.num_gpus, winner.most
    return [
        Candidate({**winner.settings, name: value}, *machine, winner.spare, is_variant=True)
        for name in names
        for value in TUNED[name]
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
    """Find the largest factor of load at which a fleet holds one draw."""
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


def resized(made: "Fleets", fleet: Candidate, window_s: float) -> Resized | None:
    """Find the fewest replicas that hold each window of the first draw by itself, all windows side by side.

    A window in which no requests arrive needs none; one that the whole fleet does not hold is given the whole
    fleet. None if the traffic is shorter than three windows, or the fleet is one replica or two pools.
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
    """The largest load of a draw, and how many of its requests get no answer there."""

    factor: float
    requests_per_s: float
    num_unanswered: int
    num_requests: int


def largest_loads(made: "Fleets", num_replicas: int, num_seeds: int, precision: float) -> "list[LargestLoad]":
    """Find the largest factor of load of each draw, and the requests a second that it stands for.

    The draws are searched side by side: a round is a trial of each one that is not yet known. Raises
    ConfigError where requests are refused at any load, or all arrive at once.
    """
    searches = [capacity_search(precision) for _ in range(num_seeds)]
    asked: dict[int, Any] = {seed: next(search) for seed, search in enumerate(searches)}
    found: dict[int, LargestLoad] = {}
    unanswered: dict[int, int] = {}
    while asked:
        trials = [FleetTrial({}, num_replicas, seed, load) for seed, load in asked.items()]
        for trial, result in zip(trials, made.results(trials), strict=True):
            if result.refused is not None:
                raise ConfigError(result.refused)
            if not result.span_s:
                raise ConfigError(
                    "all requests arrive at once, so that there is no load to raise: give a trace of more"
                    " instants, or --request-rate"
                )
            if result.is_held:
                unanswered[trial.seed] = result.num_unfinished
            try:
                asked[trial.seed] = searches[trial.seed].send(result.is_held)
            except StopIteration as end:
                factor: float = end.value
                if not factor and result.turned_away is not None:
                    raise ConfigError(f"no load holds: {result.turned_away}") from None
                per_s = result.num_requests / (result.span_s * trial.load)
                lost = unanswered.get(trial.seed, 0), result.num_requests
                found[trial.seed] = LargestLoad(factor, factor * per_s, *lost)
                del asked[trial.seed]
    return [found[seed] for seed in range(num_seeds)]
