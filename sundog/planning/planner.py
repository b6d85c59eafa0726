"""A plan: the processes that make trials, the candidates, and what one wants to know of the winner."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from actors.config import ConfigError
from sundog.ends import remark
from sundog.options.engine import EngineOptions
from sundog.options.simulation import LoadOptions, ReadingOptions, TargetOptions, TermsOptions
from sundog.planning.search import Candidate, Search, capacity_search
from sundog.planning.trial import FleetTrial, TrialResult, TrialRunner
from sundog.sweeps.cell import changed
from sundog.sweeps.source import check_tenants, workload_of
from sundog.sweeps.workers import Died, Workers, here

if TYPE_CHECKING:
    from sim.figures.named import Objective
    from sim.figures.sweep.cells import Settings
    from sundog.sweeps.cell import Plan

HEADROOM_PRECISION = 0.02
RANKS = (1, 2, 4, 8)
"""Tensor-parallel sizes that are tried where none is given."""


@dataclass(slots=True)
class Fleets:
    """Makes trials of fleets for one workload, on all processes."""

    workers: "Workers[FleetTrial, TrialResult]"
    num_processes: int
    on_progress: Callable[[int, int], None]
    num_done: int = 0

    def results(self, trials: Sequence[FleetTrial]) -> list[TrialResult]:
        """Make these trials at once, and give their results in the same order."""
        found: dict[int, TrialResult] = {}
        for number, result in self.workers.results(trials):
            found[number] = (
                TrialResult(False, {}, refused=str(result)) if isinstance(result, Died) else result
            )
            self.num_done += 1
            self.on_progress(self.num_done, self.num_done + len(trials) - len(found))
        for result in found.values():
            if result.bug is not None:
                remark(f"sundog: please report this bug of a trial\n{result.bug.rstrip()}")
        return [found[number] for number in range(len(trials))]


@contextmanager
def fleets(
    plan: "Plan", num_processes: int, on_progress: Callable[[int, int], None] | None = None
) -> "Iterator[Fleets]":
    """Begin the processes that make trials, and end them; progress is how many are done, and asked for."""
    runner = TrialRunner(plan)
    with Workers(here(runner.trial), num_processes) as workers:
        yield Fleets(workers, num_processes, on_progress or (lambda done, asked: None))


def candidates(
    plan: "Plan", cells: "Sequence[Settings]", price: Callable[[str], float], max_gpus: int
) -> list[Candidate]:
    """Each machine and its settings; raises ConfigError if one replica takes more GPUs than there may be."""
    found = []
    for settings in cells:
        engine, target = changed(plan.engine, settings), changed(plan.target, settings)
        num_gpus = engine.tensor_parallel_size * engine.pipeline_parallel_size * engine.data_parallel_size
        most = max_gpus // num_gpus
        if most:
            found.append(Candidate(settings, num_gpus * price(target.gpu), num_gpus, most))
    if not found:
        raise ConfigError(f"--max-gpus is {max_gpus}: every setting takes more GPUs for one replica")
    return found


@dataclass(frozen=True, slots=True)
class Advice:
    """The cheapest fleet, and what one wants to know before one buys it.

    `winner` is None if no fleet holds; `cheaper` is the most expensive one that fails and would cost less,
    with the result of all its requests. `headroom` is the largest factor of load at which the winner still
    holds a draw. `at_means` is the fleet that requests of mean lengths would have asked for, if there is one.
    """

    candidates: list[Candidate]
    winner: Candidate | None = None
    cheaper: tuple[Candidate, int, TrialResult] | None = None
    headroom: float | None = None
    at_means: Candidate | None = None

    @property
    def held(self) -> list[TrialResult]:
        """The trials of the winner, one a draw."""
        if self.winner is None:
            return []
        return [
            r
            for (n, _), r in sorted(self.winner.tried.items(), key=lambda i: i[0])
            if n == self.winner.holding
        ]


def advise(
    made: Fleets,
    objectives: "Sequence[Objective]",
    fresh: Callable[[], list[Candidate]],
    num_seeds: int,
    confidence: float,
) -> Advice:
    """Search for the cheapest fleet, then look at its neighbours."""
    search = Search(objectives, num_seeds, confidence, made.results, num_at_once=made.num_processes)
    tried = fresh()
    winner = search.cheapest(tried)
    if winner is None:
        return Advice(tried)
    mean = Search(objectives, 1, confidence, made.results, at_means=True, num_at_once=made.num_processes)
    return Advice(
        tried,
        winner,
        _next_cheaper(made, tried, winner),
        headroom(made, winner, 0, HEADROOM_PRECISION),
        mean.cheapest(fresh()),
    )


def _next_cheaper(
    made: Fleets, tried: Sequence[Candidate], winner: Candidate
) -> tuple[Candidate, int, TrialResult] | None:
    """The most expensive fleet that fails and costs less; the draw that it failed is played to its end."""
    failed = [
        (count * each.price, number, count, seed)
        for number, each in enumerate(tried)
        for (count, seed), result in each.tried.items()
        if not result.is_held and result.refused is None and count * each.price < winner.cost
    ]
    if not failed:
        return None
    _, number, count, seed = max(failed)
    (result,) = made.results([FleetTrial(tried[number].settings, count, seed, to_the_end=True)])
    return tried[number], count, result


def headroom(made: Fleets, fleet: Candidate, seed: int, precision: float) -> float:
    """Find the largest factor of load at which a fleet holds one draw."""
    search = capacity_search(precision)
    load = next(search)
    while True:
        (result,) = made.results([FleetTrial(fleet.settings, fleet.holding or 1, seed, load)])
        try:
            load = search.send(result.is_held)
        except StopIteration as end:
            factor: float = end.value
            return factor


def largest_loads(
    made: Fleets, num_replicas: int, num_seeds: int, precision: float
) -> list[tuple[float, float]]:
    """Find the largest factor of load of each draw, and the requests a second that it stands for.

    The draws are searched side by side: a round is a trial of each one that is not yet known.
    """
    searches = [capacity_search(precision) for _ in range(num_seeds)]
    asked = {seed: next(search) for seed, search in enumerate(searches)}
    found: dict[int, tuple[float, float]] = {}
    while asked:
        trials = [FleetTrial({}, num_replicas, seed, load) for seed, load in asked.items()]
        for trial, result in zip(trials, made.results(trials), strict=True):
            if result.refused is not None:
                raise ConfigError(result.refused)
            try:
                asked[trial.seed] = searches[trial.seed].send(result.is_held)
            except StopIteration as end:
                factor: float = end.value
                per_s = result.num_requests / (result.span_s * trial.load) if result.span_s else 0.0
                found[trial.seed] = factor, factor * per_s
                del asked[trial.seed]
    return [found[seed] for seed in range(num_seeds)]


@dataclass(frozen=True, slots=True)
class Problem:
    """A question for a plan: the traffic and the shared options, the settings to try, and their prices."""

    plan: "Plan"
    cells: "list[Settings]"
    objectives: "tuple[Objective, ...]"
    price: Callable[[str], float]
    max_gpus: int

    def advise(self, made: Fleets, replications: int, confidence: float) -> Advice:
        """Search for the cheapest fleet; a trace is one draw, however many are asked for."""
        num_seeds = 1 if all(map(self.plan.is_fixed, self.cells)) else replications

        def fresh() -> list[Candidate]:
            return candidates(self.plan, self.cells, self.price, self.max_gpus)

        return advise(made, self.objectives, fresh, num_seeds, confidence)


def planned(
    source: str,
    reading: ReadingOptions,
    engine: EngineOptions,
    target: TargetOptions,
    load: LoadOptions,
    terms: TermsOptions,
    gpus: Sequence[str],
    vary: Mapping[str, Sequence[Any]],
    prices: Mapping[str, float] | None,
    max_gpus: int,
) -> Problem:
    """Check a question; raises ConfigError, which names the option."""
    from sim.figures.sweep.cells import grid
    from sundog.planning.prices import price_of
    from sundog.sweeps.cell import Plan

    objectives = terms.service_level.objectives
    if not objectives:
        raise ConfigError("--slo names no objective of a run: give a percentile, as in --slo 'p95(ttft)<1'")
    if engine.replicas != 1 or "replicas" in vary:
        raise ConfigError("--replicas is given, and replicas are what is searched: leave it out")
    axes: dict[str, Any] = {"gpu": list(dict.fromkeys(gpus)), "tensor_parallel_size": list(RANKS)}
    if engine.tensor_parallel_size != 1:
        axes["tensor_parallel_size"] = [engine.tensor_parallel_size]
    cells = grid(axes | {name: list(values) for name, values in vary.items()})
    one = replace(target, gpu=axes["gpu"][0])
    shared = Plan(workload_of(source, reading), source, engine, one, load, terms)
    check_tenants(shared, cells, [each.metric for each in objectives])
    for gpu in axes["gpu"]:
        price_of(gpu, prices)
    return Problem(shared, cells, objectives, lambda gpu: price_of(gpu, prices), max_gpus)
