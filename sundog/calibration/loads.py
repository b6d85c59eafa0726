"""Cost file fitted to the loads of one server, and a prediction of each load by a fit to the others.

Steps are fitted to the durations of requests. The front end's time is the TTFT beyond that of a simulation of
the same loads without a front end. If bursts were measured, too, they tell how much of that time queues, and
in how many stages (`sundog.calibration.front`); each size of bursts is predicted by a fit to the others.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from sundog.actors.config.front_costs import FrontCosts
from sundog.actors.config.hop_costs import HopCosts
from sundog.builds.measuring import ClientLoad, predict
from sundog.builds.replayed import play
from sundog.builds.simulated import deploy
from sundog.calibration.found import FoundCost, LeftOut, in_words
from sundog.calibration.front import Burst, FittedFront, Floats, fit_services
from sundog.options.engine import EngineOptions
from sundog.options.simulation import LoadOptions, TargetOptions, TermsOptions
from sundog.sim.cost.calibrated import InRange
from sundog.sim.cost.cost_file import DRIFT, HOST, LOADS_ERROR, MEASURED, write_cost
from sundog.sim.cost.overhead import NO_OVERHEAD, WithOverhead
from sundog.sim.cost.profile import HOPS
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
APART_S = 1e4
"""Seconds between two simulated bursts, more than any takes."""
MEANS = ("ttft", "tpot", "e2e")
SCATTERED = 0.2
"""Scatter of repetitions from which bursts are unreliable."""
OF_BURSTS = ("mean", "first", "last")
"""Figures of TTFT in a burst."""
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


def from_loads(
    loads: Sequence[MeasuredLoad],
    source: str,
    output: Path,
    engine: EngineOptions,
    *,
    bursts: Sequence[Burst] = (),
) -> FoundCost:
    """Fit to the loads and bursts, write the file, and predict each load, and each size of bursts, by a fit
    to the others alone.
    """
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
    trials, all_names = Trials(tuple(loads), simulated, tuple(bursts)), set(names)
    cost = InRange(fitted.model, fitted.measured, doubt=max(map(abs, (*fitted.errors, fitted.drift))))
    front = trials.front(cost, all_names, bursts)
    found = {
        name: trials.without(name, own) for name, own in zip(dict.fromkeys(names), fitted.others, strict=True)
    }
    for name in MEANS:
        evidence[f"left_out_{name}"] = [round(own[name].error or 0.0, 4) for own in found.values()]
    found_bursts = {f"{burst.size} at once": trials.without_burst(burst, cost) for burst in bursts}
    evidence |= _burst_evidence(bursts, front, found_bursts)
    tables: dict[str, Mapping[str, object]] = {HOST: {"request_s": front.costs.request}, **known}
    if bursts:
        tables = {
            HOST: {"request_s": front.costs.request, "api_stages": front.costs.stages},
            HOPS: {"submit": front.latency_s},
            **known,
        }
    write_cost(output, fitted.model, source, fitted.measured, tables)
    return FoundCost(
        file=output,
        remarks=(*remarks, *_front_remarks(bursts, front), _mean_errors(found), *_burst_errors(found_bursts)),
        left_out={**found, **found_bursts},
    )


def _burst_evidence(
    bursts: Sequence[Burst], front: FittedFront, found: Mapping[str, LeftOut]
) -> dict[str, object]:
    if not bursts:
        return {}

    def errors(name: str) -> list[float]:
        return [round(own[name].error or 0.0, 4) for own in found.values()]

    return {
        "burst_sizes": [burst.size for burst in bursts],
        "burst_errors_by_stages": [round(error, 4) for error in front.errors.values()],
        "burst_scatter": round(max(burst.scatter for burst in bursts), 4),
        "burst_client_s": round(max(burst.client_s for burst in bursts), 6),
        "left_out_burst_mean": errors("mean"),
        "left_out_burst_first": errors("first"),
        "left_out_burst_last": errors("last"),
    }


def _front_remarks(bursts: Sequence[Burst], front: FittedFront) -> Iterator[str]:
    service_ms, stages = front.costs.request * 1e3, front.costs.stages
    if not bursts:
        yield f"{service_ms:.2f} ms before each request's first step, mean of the loads"
        return
    yield (
        f"an API process takes {service_ms:.2f} ms for a request, in {_stages(stages)}, one request at a"
        f" time; {front.latency_s * 1e3:.2f} ms more before its first step do not queue (network, client)"
    )
    errors = ", ".join(f"{_stages(each)} {error:.1%}" for each, error in front.errors.items())
    scatter, client_s = (max(getattr(burst, name) for burst in bursts) for name in ("scatter", "client_s"))
    yield (
        f"errors of the bursts by stages: {errors}; repetitions of one burst differed by up to {scatter:.1%}"
        f" (two standard deviations), and a request of a burst took the client {client_s * 1e3:.2f} ms"
    )
    if scatter > SCATTERED:
        yield (
            "bursts differ too much for their service and stages to be reliable: calibrate again when server"
            " and client are less busy"
        )
    if front.alike:
        others = ", ".join(map(_stages, front.alike))
        yield f"these bursts cannot tell {_stages(stages)} from {others}: use larger --bursts"
    if client_s > front.costs.request / 2:
        yield (
            "the client's own time for a request is more than half of the API process's: the service may be"
            " the client's; burst from a faster or less busy machine"
        )


def _stages(number: int) -> str:
    return f"{number} stage{'s' * (number != 1)}"


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


def _burst_errors(found: Mapping[str, LeftOut]) -> Iterator[str]:
    if not found:
        return
    sums = [
        f"{name} {sum(abs(own[name].error or 0.0) for own in found.values()) / len(found):.1%}"
        for name in OF_BURSTS
    ]
    yield f"mean absolute errors of TTFT in bursts that were left out: {', '.join(sums)}"


def _pooled(parts: Iterable[tuple[MeasuredLoad, Means]]) -> Means:
    listed = [(len(load.asked), means_s) for load, means_s in parts]
    total = sum(weight for weight, _ in listed)
    return {name: sum(weight * means_s[name] for weight, means_s in listed) / total for name in MEANS}


@dataclass(frozen=True, slots=True)
class Trials:
    """Loads and bursts of one server, and a simulation of that server to which a cost model is added."""

    loads: tuple[MeasuredLoad, ...]
    simulated: Simulated
    bursts: tuple[Burst, ...] = ()

    def front(self, cost: InRange, names: set[str], bursts: Sequence[Burst]) -> FittedFront:
        """Return the front end: bursts tell its service and stages, and the mean TTFT of loads beyond that
        and the steps is a latency. Without bursts all of it is the service, of one stage.
        """
        measured_s, front = self._measured(names)["ttft"], FittedFront(FrontCosts())
        if bursts:
            front = fit_services(bursts, partial(self._first_s, bursts, cost))
        for _ in range(CORRECTIONS):
            beyond_s = measured_s - self._predicted(names, self._with(cost, front))["ttft"]
            if bursts:
                latency_s = min(max(0.0, front.latency_s + beyond_s), HopCosts.most_s)
                front = replace(front, latency_s=latency_s)
            else:
                front = FittedFront(FrontCosts(request=max(0.0, front.costs.request + beyond_s)))
        return front

    def without(self, name: str, cost: InRange) -> LeftOut:
        """Return the means of the load `name`, predicted by a cost model and a front end fitted to the other
        loads.
        """
        front = self.front(cost, {load.name for load in self.loads} - {name}, self.bursts)
        simulated, measured = self._with(cost, front), self._measured({name})
        predicted = self._predicted({name}, simulated)
        sides = [self._predicted({name}, side) for side in simulated.doubted()]
        return {
            each: _compared(f"{each.upper()} mean", measured[each], predicted[each], [s[each] for s in sides])
            for each in MEANS
        }

    def without_burst(self, burst: Burst, cost: InRange) -> LeftOut:
        """Return TTFT in a burst, predicted by a front end fitted to the loads and to bursts of other
        sizes.
        """
        others = [each for each in self.bursts if each.size != burst.size]
        simulated = self._with(cost, self.front(cost, {load.name for load in self.loads}, others))
        measured, predicted, *sides = (
            {"mean": float(first_s.mean()), "first": float(first_s[0]), "last": float(first_s[-1])}
            for first_s in (
                burst.first_token_s,
                *(_played_bursts([burst], each)[0] for each in (simulated, *simulated.doubted())),
            )
        )
        return {
            each: _compared(f"TTFT {each}", measured[each], predicted[each], [side[each] for side in sides])
            for each in OF_BURSTS
        }

    def _first_s(self, bursts: Sequence[Burst], cost: InRange, costs: FrontCosts) -> list[Floats]:
        return _played_bursts(bursts, self._with(cost, FittedFront(costs)))

    def _with(self, cost: InRange, front: FittedFront) -> Simulated:
        served = WithOverhead(cost, NO_OVERHEAD)
        config = replace(self.simulated.config, front=front.costs, hops=HopCosts(submit=front.latency_s))
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


def _compared(name: str, measured_s: float, predicted_s: float, sides_s: Sequence[float]) -> ComparedFigure:
    all_s = (predicted_s, *sides_s)
    span = (min(all_s) * 1e3, max(all_s) * 1e3)
    return ComparedFigure(f"{name}, ms", measured_s * 1e3, predicted_s * 1e3, span)


def _played_bursts(bursts: Sequence[Burst], simulated: Simulated) -> list[Floats]:
    """Return the times of first tokens, ascending, of each burst on an idle server."""
    rows = [row for number, burst in enumerate(bursts) for row in burst.rows(APART_S * number, f"{number}")]
    columns = play(simulated, rows, LoadOptions(), seed=0).columns
    found: list[list[float]] = [[] for _ in bursts]
    for arrival_s, first_s in zip(columns.arrival_s, columns.first_token_s, strict=True):
        number = int(arrival_s // APART_S)
        found[number].append(first_s - APART_S * number)
    return [np.array(sorted(each)) for each in found]
