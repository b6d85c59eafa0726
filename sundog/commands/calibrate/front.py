"""The time in front of requests of a server whose loads were measured, and how well others are predicted."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sim.cost.overhead import NO_OVERHEAD, WithOverhead
from sim.cost.work import CostModel
from sim.figures.validate.records import asked_in
from sim.record.run_directory import Run, open_run
from sim.trace.record import TraceRequest
from sundog.builds.measuring import ClientLoad, predict
from sundog.builds.simulated import Simulated
from sundog.options.engine import EngineOptions
from sundog.options.simulation import TargetOptions, TermsOptions

ROOM = 2**17
"""Blocks of the simulated cache: a server that runs out of its own is no load to calibrate from."""
MEANS = ("ttft", "tpot", "e2e")


@dataclass(frozen=True, slots=True)
class Loads:
    """Loads of one server with what their clients measured, and a simulation of it without its cost."""

    runs: tuple[Run, ...]
    asked: tuple[list[TraceRequest], ...]
    simulated: Simulated

    @classmethod
    def of(cls, folders: Sequence[Path], cost: Path, engine: EngineOptions) -> "Loads":
        """Read the runs; `engine` says how the server plans."""
        runs = tuple(open_run(folder) for folder in folders)
        target = TargetOptions(cost=str(cost.resolve()), host_overhead=False)
        simulated = Simulated.of(replace(engine, num_gpu_blocks=ROOM), target)
        return cls(runs, tuple(asked_in(run) for run in runs), simulated)

    def front_s(self, cost: CostModel, indices: Iterable[int]) -> float:
        """Return what the TTFT of these loads takes beyond the steps, in the mean."""
        beyond_s = [self._measured_s(i, "ttft") - self._predicted_s(i, cost, 0.0)["ttft"] for i in indices]
        return max(0.0, sum(beyond_s) / len(beyond_s))

    def without(self, index: int, cost: CostModel) -> dict[str, float]:
        """Return the errors of a load's means, by a cost and a front end that know the others alone."""
        front_s = self.front_s(cost, (each for each in range(len(self.runs)) if each != index))
        predicted_s = self._predicted_s(index, cost, front_s)
        return {name: predicted_s[name] / self._measured_s(index, name) - 1 for name in MEANS}

    def _measured_s(self, index: int, name: str) -> float:
        mean_s: float = self.runs[index].summary[f"{name}_s"]["mean"]
        return mean_s

    def _predicted_s(self, index: int, cost: CostModel, front_s: float) -> dict[str, float]:
        load = ClientLoad("", num_clients=self.runs[index].config.get("clients"))
        simulated = replace(self.simulated, cost=WithOverhead(cost, NO_OVERHEAD), front_end_s=front_s)
        found = predict(load, simulated, TermsOptions(), self.asked[index])
        means = {name: getattr(found, f"{name}_s") for name in MEANS}
        return {name: 0.0 if each is None else each.mean for name, each in means.items()}
