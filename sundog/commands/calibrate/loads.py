"""Loads of one server as a cost file, and how well each is predicted by a fit to the others.

The steps are fitted to how long requests took; the time in front of them is what TTFT is longer than a
simulation of the same loads without it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sundog.builds.measuring import ClientLoad, predict
from sundog.builds.simulated import deploy
from sundog.commands.calibrate.logs import in_words
from sundog.ends import remark
from sundog.options.engine import EngineOptions
from sundog.options.simulation import TargetOptions, TermsOptions
from sundog.sim.cost.calibrated import InRange
from sundog.sim.cost.cost_file import DRIFT, HOST, LOADS_ERROR, MEASURED, write_cost
from sundog.sim.cost.overhead import NO_OVERHEAD, WithOverhead
from sundog.sim.deployment.record import Simulated
from sundog.sim.figures.fit_requests import Fitted, Observed, fit_requests, read_observed
from sundog.sim.figures.metrics import Summary
from sundog.sim.figures.validate.records import asked_in
from sundog.sim.files.run_files import REQUESTS
from sundog.sim.record.run_directory import open_run
from sundog.sim.show.comparison import ComparedFigure, print_figures
from sundog.sim.show.console import console_for
from sundog.sim.trace.record import TraceRequest

ROOM = 2**17
"""The blocks of the simulated cache: a server that runs out of its own is no load to calibrate from."""
MEANS = ("ttft", "tpot", "e2e")
Means = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class MeasuredLoad:
    """A load with what its clients measured; several of one `name` are left out together."""

    name: str
    observed: Observed
    asked: Sequence[TraceRequest] = ()
    """The requests; none where only the server's own log is known."""
    means_s: Means | None = None
    num_clients: int | None = None

    @classmethod
    def read(cls, folder: Path) -> "MeasuredLoad":
        """The load of a run, or of a server's log."""
        name, observed = folder.resolve().name, read_observed(folder)
        if not (folder / REQUESTS).is_file():
            return cls(name, observed)
        run = open_run(folder)
        means_s = {each: run.summary[f"{each}_s"]["mean"] for each in MEANS}
        return cls(
            name, observed, asked=asked_in(run), means_s=means_s, num_clients=run.config.get("clients")
        )


def means_of(summary: Summary) -> Means:
    """The means of a run by their names; 0 where there is none."""
    found = {name: getattr(summary, f"{name}_s") for name in MEANS}
    return {name: 0.0 if each is None else each.mean for name, each in found.items()}


def from_loads(loads: Sequence[MeasuredLoad], source: str, output: Path, engine: EngineOptions) -> None:
    """Fit to the loads, write the file, and say how well each load is predicted by the others alone."""
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
    _say(output, loads, fitted)
    if len(loads) == 1 or not all(load.asked for load in loads):
        return
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
    remark(f"{front_s * 1e3:.2f} ms in front of a request, in the mean of the loads")
    _show(found)


def _say(output: Path, loads: Sequence[MeasuredLoad], fitted: Fitted) -> None:
    num_requests = sum(int((load.observed.num_output_tokens > 1).sum()) for load in loads)
    remark(f"{output}: {in_words(fitted.model)}, from {num_requests:,} requests")
    remark(
        f"explains how long requests decoded to {fitted.median_error:.1%} (median); {fitted.num_left_out:,}"
        " left out, which took too long for it"
    )
    if fitted.unknown:
        remark(
            f"these loads do not tell what {', '.join(fitted.unknown)} takes: it is taken as 0; other lengths"
            " and rates would tell"
        )
    if fitted.drift:
        remark(
            f"rounds of one rate took up to {fitted.drift:.1%} longer or shorter than others (two standard"
            " deviations): no profile predicts a load as short as a round closer than that"
        )


LeftOut = dict[str, ComparedFigure]
"""The figures of a load by their names, with the range in which they should be."""


def _show(found: Mapping[str, LeftOut]) -> None:
    figures = [
        figure._replace(name=f"{load}: {figure.name}")
        for load, own in found.items()
        for figure in own.values()
    ]
    print_figures(figures, console_for(), "each load, predicted by a fit to the other loads alone")
    sums = [
        f"{name.upper()} {sum(abs(own[name].error or 0.0) for own in found.values()) / len(found):.1%}"
        for name in MEANS
    ]
    within = sum(figure.is_within for figure in figures)
    remark(
        f"mean absolute errors of loads that were left out: {', '.join(sums)};"
        f" {within} of {len(figures)} figures lie in their ranges"
    )


def _pooled(parts: Iterable[tuple[MeasuredLoad, Means]]) -> Means:
    listed = [(len(load.asked), means_s) for load, means_s in parts]
    total = sum(weight for weight, _ in listed)
    return {name: sum(weight * means_s[name] for weight, means_s in listed) / total for name in MEANS}


@dataclass(frozen=True, slots=True)
class Trials:
    """Loads of one server, and a simulation of it without its cost."""

    loads: tuple[MeasuredLoad, ...]
    simulated: Simulated

    def front_s(self, cost: InRange, names: set[str]) -> float:
        """Return what the TTFT of these loads takes beyond the steps, in the mean of their requests."""
        simulated = self._with(cost, 0.0)
        return max(0.0, self._measured(names)["ttft"] - self._predicted(names, simulated)["ttft"])

    def without(self, name: str, cost: InRange) -> LeftOut:
        """Return a load's means by a cost and a front end that know the other loads alone."""
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
        return replace(self.simulated, cost=served, kernels=(served,), front_end_s=front_s)

    def _measured(self, names: set[str]) -> Means:
        return _pooled(
            (load, load.means_s) for load in self.loads if load.name in names and load.means_s is not None
        )

    def _predicted(self, names: set[str], simulated: Simulated) -> Means:
        def played(load: MeasuredLoad) -> Means:
            clients = ClientLoad("", num_clients=load.num_clients)
            return means_of(predict(clients, simulated, TermsOptions(), load.asked))

        return _pooled((load, played(load)) for load in self.loads if load.name in names)
