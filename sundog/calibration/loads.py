"""Cost file fitted to the loads of one server, and a prediction of each load by a fit to the others.

Steps are fitted to the durations of requests. The front end's time is the TTFT beyond that of a simulation of
the same loads without a front end.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sundog.actors.config.front_costs import FrontCosts
from sundog.builds.measuring import ClientLoad, predict
from sundog.builds.simulated import deploy
from sundog.calibration.found import FoundCost, LeftOut, in_words
from sundog.options.engine import EngineOptions
from sundog.options.simulation import TargetOptions, TermsOptions
from sundog.sim.cost.calibrated import InRange
from sundog.sim.cost.cost_file import DRIFT, HOST, LOADS_ERROR, MEASURED, write_cost
from sundog.sim.cost.overhead import NO_OVERHEAD, WithOverhead
from sundog.sim.deployment.record import Simulated
from sundog.sim.figures.fit_requests import Fitted, Observed, fit_requests, read_observed
from sundog.sim.figures.metrics import Summary
from sundog.sim.files.run_files import REQUESTS
from sundog.sim.record.run_directory import open_run
from sundog.sim.show.comparison import ComparedFigure
from sundog.sim.trace.record import TraceRequest
from sundog.sim.validation.records import asked_in

ROOM = 2**17
"""Blocks of the simulated cache, more than any load uses: a load that exhausts the server's own cannot be
calibrated.
"""
CORRECTIONS = 3
"""Corrections of an API process's time, which is too long at first because requests also queue there."""
MEANS = ("ttft", "tpot", "e2e")
Means = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class MeasuredLoad:
    """Load with its clients' measurements; loads of the same `name` are excluded together from a fit."""

    name: str
    observed: Observed
    asked: Sequence[TraceRequest] = ()
    """Requests sent; empty if only the server's own log exists."""
    means_s: Means | None = None
    num_clients: int | None = None

    @classmethod
    def read(cls, folder: Path) -> "MeasuredLoad":
        """Read the load of a run, or of a server's log."""
        name, observed = folder.resolve().name, read_observed(folder)
        if not (folder / REQUESTS).is_file():
            return cls(name, observed)
        run = open_run(folder)
        means_s = {each: run.summary[f"{each}_s"]["mean"] for each in MEANS}
        return cls(
            name, observed, asked=asked_in(run), means_s=means_s, num_clients=run.config.get("clients")
        )


def means_of(summary: Summary) -> Means:
    """Return the means of a run by name; 0 for missing ones."""
    found = {name: getattr(summary, f"{name}_s") for name in MEANS}
    return {name: 0.0 if each is None else each.mean for name, each in found.items()}


def from_loads(loads: Sequence[MeasuredLoad], source: str, output: Path, engine: EngineOptions) -> FoundCost:
    """Fit to the loads, write the file, and predict each load by a fit to the others alone."""
    names = [load.name for load in loads]
    fitted = fit_requests(*(load.observed for load in loads), groups=names)
    evidence: dict[str, object] = {}
    if fitted.errors:
        evidence[LOADS_ERROR] = round(max(map(abs, fitted.errors)), 4)
        evidence["left_out_errors"] = [round(error, 4) for error in fitted.errors]
    if fitted.drift:
        evidence[DRIFT] = round(fitted.drift, 4)
    known = {MEASURED: evidence} if evidence else {}
    write_cost(output, fitted.model, source, fitted.measured, known)
    remarks = _remarks(output, loads, fitted)
    if len(loads) == 1 or not all(load.asked for load in loads):
        return FoundCost(file=output, remarks=remarks)
    simulated = deploy(
        replace(engine, num_gpu_blocks=ROOM), TargetOptions(cost=str(output.resolve()), host_overhead=False)
    )
    trials = Trials(tuple(loads), simulated)
    front_s = trials.front_s(InRange(fitted.model, fitted.measured), set(names))
    found = {
        name: trials.without(name, cost)
        for name, cost in zip(dict.fromkeys(names), fitted.others, strict=True)
    }
    for name in MEANS:
        evidence[f"left_out_{name}"] = [round(own[name].error or 0.0, 4) for own in found.values()]
    write_cost(output, fitted.model, source, fitted.measured, {HOST: {"request_s": front_s}, **known})
    front = f"{front_s * 1e3:.2f} ms before each request's first step, mean of the loads"
    return FoundCost(file=output, remarks=(*remarks, front, _mean_errors(found)), left_out=found)


def _remarks(output: Path, loads: Sequence[MeasuredLoad], fitted: Fitted) -> tuple[str, ...]:
    num_requests = sum(int((load.observed.num_output_tokens > 1).sum()) for load in loads)
    remarks = [
        f"{output}: {in_words(fitted.model)}, from {num_requests:,} requests",
        f"explains how long requests decoded to {fitted.median_error:.1%} (median); {fitted.num_left_out:,}"
        " left out, which took too long for it",
    ]
    if fitted.unknown:
        remarks.append(
            f"these loads cannot identify the cost of {', '.join(fitted.unknown)}: it is set to 0;"
            " use other lengths and rates"
        )
    if fitted.drift:
        remarks.append(
            f"rounds of one rate took up to {fitted.drift:.1%} longer or shorter than others (two standard"
            " deviations): no profile predicts a load as short as a round closer than that"
        )
    return tuple(remarks)


def _mean_errors(found: Mapping[str, LeftOut]) -> str:
    figures = [figure for own in found.values() for figure in own.values()]
    sums = [
        f"{name.upper()} {sum(abs(own[name].error or 0.0) for own in found.values()) / len(found):.1%}"
        for name in MEANS
    ]
    within = sum(figure.is_within for figure in figures)
    return (
        f"mean absolute errors of loads that were left out: {', '.join(sums)};"
        f" {within} of {len(figures)} figures lie in their ranges"
    )


def _pooled(parts: Iterable[tuple[MeasuredLoad, Means]]) -> Means:
    listed = [(len(load.asked), means_s) for load, means_s in parts]
    total = sum(weight for weight, _ in listed)
    return {name: sum(weight * means_s[name] for weight, means_s in listed) / total for name in MEANS}


@dataclass(frozen=True, slots=True)
class Trials:
    """Loads of one server, and a simulation of that server to which a cost model is added."""

    loads: tuple[MeasuredLoad, ...]
    simulated: Simulated

    def front_s(self, cost: InRange, names: set[str]) -> float:
        """Return the time of an API process: the mean TTFT beyond the steps, without queueing."""
        measured_s, front_s = self._measured(names)["ttft"], 0.0
        for _ in range(CORRECTIONS):
            predicted_s = self._predicted(names, self._with(cost, front_s))["ttft"]
            front_s = max(0.0, front_s + measured_s - predicted_s)
        return front_s

    def without(self, name: str, cost: InRange) -> LeftOut:
        """Return the means of the load `name`, predicted by a cost model and a front end fitted to the other
        loads.
        """
        front_s = self.front_s(cost, {load.name for load in self.loads} - {name})
        simulated, measured = self._with(cost, front_s), self._measured({name})
        predicted = self._predicted({name}, simulated)
        sides = [predicted, *(self._predicted({name}, side) for side in simulated.doubted())]
        return {
            each: ComparedFigure(
                f"{each.upper()} mean, ms",
                measured[each] * 1e3,
                predicted[each] * 1e3,
                (min(side[each] for side in sides) * 1e3, max(side[each] for side in sides) * 1e3),
            )
            for each in MEANS
        }

    def _with(self, cost: InRange, front_s: float) -> Simulated:
        served = WithOverhead(cost, NO_OVERHEAD)
        config = replace(self.simulated.config, front=FrontCosts(request=front_s))
        return replace(self.simulated, config=config, cost=served, kernels=(served,))

    def _measured(self, names: set[str]) -> Means:
        return _pooled(
            (load, load.means_s) for load in self.loads if load.name in names and load.means_s is not None
        )

    def _predicted(self, names: set[str], simulated: Simulated) -> Means:
        def played(load: MeasuredLoad) -> Means:
            clients = ClientLoad("", num_clients=load.num_clients)
            return means_of(predict(clients, simulated, TermsOptions(), load.asked))

        return _pooled((load, played(load)) for load in self.loads if load.name in names)
