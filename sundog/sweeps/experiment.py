"""Sweep in progress: its cells' jobs on all processes, in order, each run made once.

With `--on ray` the processes are on a cluster. A run there equals a local one, and leaves the same bytes in
the same folder: every node has the same Sundog, and shares the sweep's files with this machine.
"""

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from sundog.fast import one_thread
from sundog.options.serving import parse_on
from sundog.sweeps.cell import CellRunner, Plan, changed
from sundog.sweeps.sweep_folder import ASKED
from sundog.sweeps.workers import Crew, Died, Workers, here

if TYPE_CHECKING:
    from sundog.sim.figures.named import Metric
    from sundog.sim.figures.sweep.cells import Cell, FailedRun, Job, Measures, Rule, Settings
    from sundog.sim.figures.sweep.played import Played
    from sundog.sim.fleet.figures import MissedAlone


J = TypeVar("J")
R = TypeVar("R")


class RemoteRunner(Generic[J, R]):
    """Calls `run` in a process elsewhere; `refused` makes a result of a node's error."""

    def __init__(self, run: Callable[[J], R], refused: Callable[[str], R], folder: Path | None) -> None:
        self._run, self._refused = run, refused
        self._versions = _versions()
        self._folder = None if folder is None else folder.absolute()

    def __call__(self, job: J) -> R:
        """Return one run, or the reason why this node cannot make one."""
        one_thread()
        if (refusal := self._refusal()) is not None:
            return self._refused(f"node {platform.node()} {refusal}")
        return self._run(job)

    def _refusal(self) -> str | None:
        ours = _versions()
        if ours != self._versions:
            return f"has {ours}, and the command {self._versions}: install one on all"
        if self._folder is not None and not (self._folder / ASKED).exists():
            return f"cannot read {self._folder}: --out needs a folder that all nodes share"
        return None


def on_cluster(
    run: Callable[[J], R],
    refused: Callable[[str], R],
    folder: Path | None,
    on: str,
    num_processes: int,
    stack: ExitStack,
) -> tuple[Crew[J, R], int]:
    """Return a crew on the cluster until `stack` ends, and its size: all CPUs if `num_processes` is 0.

    Each node must be able to read `folder`, if there is one.
    """
    from sundog.runtime.ray.cluster import joined

    cluster = stack.enter_context(joined(parse_on(on), num_processes or os.cpu_count() or 1))
    from sundog.runtime.ray.jobs import RayWorker, wait

    remote = RemoteRunner(run, refused, folder)
    crew: Crew[J, R] = Crew(lambda: RayWorker(remote, Died), wait)
    return crew, num_processes or max(int(cluster.num("CPU")), 1)


def _versions() -> str:
    from sundog.sim.record.run_directory import sundog_version

    return f"Sundog {sundog_version()} for Python {'.'.join(platform.python_version_tuple()[:2])}"


Progress = Callable[[int, int], None]
"""Function called with the numbers of finished and expected runs."""


def remarks_of(plan: Plan, cells: "Sequence[Settings]") -> list[str]:
    """Return remarks on unmeasured GPUs and models of the cells, each once."""
    from sundog.builds.simulated import priced

    found = (priced(changed(plan.engine, each), changed(plan.target, each)) for each in cells)
    return list(dict.fromkeys(text for texts in found for text in texts))


class Experiment:
    """Cells to run; `num_done` counts finished runs."""

    def __init__(self, plan: Plan, cells: "Sequence[Settings]", on_progress: Progress | None = None) -> None:
        from sundog.sim.figures.sweep.played import Shelf

        self._plan, self._cells = plan, cells
        self._fixed = [plan.is_fixed(settings) for settings in cells]
        self._shelf = Shelf()
        self._kept: dict[int, int | FailedRun] = {}
        """Results of fixed cells, on the shelf, and of failed ones: the same for every seed."""
        self._first: dict[int, bytes] = {}
        """Digest of the first run of each cell that may be random."""
        self._compared: set[int] = set()
        """Cells with more than one run."""
        self._varies: set[int] = set()
        """Cells in which some seed gave another run than the first."""
        self._on_progress = on_progress or (lambda done, all: None)
        self.num_done = self.num_asked = 0
        self.missed_alone: dict[int, MissedAlone] = {}
        """Prompts that miss a scaler's objective alone, by cell: those of its first such run."""

    @property
    def remarks(self) -> list[str]:
        """Remarks on finished cells, such as prompts that miss an objective alone."""
        from sundog.sim.figures.sweep.cells import label

        return [f"{label(self._cells[number])}: {text}" for number, text in sorted(self.missed_alone.items())]

    def run(
        self,
        rule: "Rule",
        warmup_s: float | None,
        metrics: "Sequence[Metric]",
        num_processes: int,
        on: str | None = None,
    ) -> "list[Cell]":
        """Run all cells in `num_processes` processes, here or `on` a cluster, where 0 means all CPUs."""
        from sundog.sim.figures.sweep.cells import FailedRun, sweep
        from sundog.sim.figures.sweep.played import measured

        with ExitStack() as stack:
            runner, folder = CellRunner(self._plan), self._plan.folder
            crew = here(runner)
            if on is not None:
                path = None if folder is None else folder.path
                crew, num_processes = on_cluster(runner, FailedRun, path, on, num_processes, stack)
            workers = stack.enter_context(Workers(crew, num_processes))

            def run_all(jobs: "Sequence[Job]") -> "Iterator[Measures | FailedRun]":
                return measured(jobs, self._outcomes(workers, jobs), warmup_s, metrics)

            return sweep(self._cells, rule, run_all, self._gave_one_run)

    def _gave_one_run(self, settings: "Settings") -> bool:
        """Return whether the cell is deterministic: every seed, or at least two, gave the same run."""
        number = self._cells.index(settings)
        return self._fixed[number] or (number in self._compared and number not in self._varies)

    def _outcomes(
        self, workers: "Workers[Job, Played | FailedRun]", jobs: "Sequence[Job]"
    ) -> "Iterator[Played | FailedRun]":
        numbers = [self._cells.index(settings) for settings, _ in jobs]
        new = [p for p, (_, seed) in enumerate(jobs) if seed == 0 or not self._fixed[numbers[p]]]
        self.num_asked += len(new)
        results = workers.results([jobs[p] for p in new], lambda job: self._known(self._cells.index(job[0])))
        done: dict[int, Played | FailedRun] = {}
        for place, number in enumerate(numbers):
            if self._fixed[number] and jobs[place][1] > 0:
                known = self._known(number)
                assert known is not None, "seed 0 comes first"
                yield known
                continue
            while place not in done:
                which, result = next(results)
                done[new[which]] = self._taken(numbers[new[which]], result)
            yield done.pop(place)

    def _known(self, number: int) -> "Played | FailedRun | None":
        kept = self._kept.get(number)
        return self._shelf.get(kept) if isinstance(kept, int) else kept

    def _taken(self, number: int, result: "Played | FailedRun | Died") -> "Played | FailedRun":
        from sundog.sim.figures.sweep.cells import FailedRun

        outcome = FailedRun(str(result)) if isinstance(result, Died) else result
        if not isinstance(outcome, FailedRun) and outcome.missed_alone is not None:
            self.missed_alone.setdefault(number, outcome.missed_alone)
        if isinstance(outcome, FailedRun):
            self._kept.setdefault(number, outcome)
        elif self._fixed[number]:
            if number not in self._kept:
                self._kept[number] = self._shelf.put(outcome)
        elif number not in self._first:
            self._first[number] = outcome.fates
        else:
            self._compared.add(number)
            if self._first[number] != outcome.fates:
                self._varies.add(number)
        self.num_done += 1
        self._on_progress(self.num_done, self.num_asked)
        return outcome
