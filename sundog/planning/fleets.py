"""Trials in parallel processes, here or on a cluster; with a folder, each is made once and stored.

plan.json      options of all trials: the same command goes on, another one is refused by name
trials.jsonl   a line for each trial, in the order in which they ended
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sundog.actors.config import ConfigError
from sundog.ends import remark, writing
from sundog.planning.trial import FleetTrial, TrialResult, TrialRunner, refusal
from sundog.sweeps.experiment import on_cluster
from sundog.sweeps.kept_folder import KeptFolder
from sundog.sweeps.source import identity
from sundog.sweeps.workers import Died, Workers, here

if TYPE_CHECKING:
    from sundog.options.simulation import ReadingOptions
    from sundog.sim.figures.sweep.cells import Settings
    from sundog.sweeps.cell import Plan

ASKED, TRIALS = "plan.json", "trials.jsonl"
SEARCHED = ("gpu", "tensor_parallel_size")
"""Options that differ between trials, and may therefore differ between searches in one folder."""


class TrialLog:
    """Trials stored in a folder: earlier ones, and each new one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, TrialResult] = {}
        try:
            lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
            for line in lines:
                found = json.loads(line)
                self._known[found["trial"]] = TrialResult(**found["result"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is damaged: {error}; remove it, and go on") from None

    def known(self, trial: FleetTrial) -> TrialResult | None:
        """Return the result of an earlier trial."""
        return self._known.get(_key(trial))

    def keep(self, trial: FleetTrial, result: TrialResult) -> None:
        """Append a result in one write, so that a killed command leaves complete lines. Results that are bugs
        are not stored.
        """
        if result.bug is not None or result.no_traffic is not None:
            return
        line = json.dumps({"trial": _key(trial), "result": asdict(result)}) + "\n"
        with writing(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(line)


def _key(trial: FleetTrial) -> str:
    return json.dumps(trial._asdict(), default=str)


@dataclass(slots=True)
class Fleets:
    """Runner of trials of fleets for one workload, on all processes.

    `on_progress` is called with the numbers of finished and expected trials.
    """

    workers: "Workers[FleetTrial, TrialResult]"
    num_processes: int
    on_progress: Callable[[int, int], None]
    log: TrialLog | None = None
    num_done: int = 0
    _expected: int = field(default=0)

    def expect(self, count: int) -> None:
        """Set the number of trials that may follow."""
        self._expected = count

    def results(self, trials: Sequence[FleetTrial]) -> list[TrialResult]:
        """Run these trials in parallel, and return their results in the same order.

        Raises ConfigError if the traffic cannot be made.
        """
        found: dict[int, TrialResult] = {}
        for number, trial in enumerate(trials):
            if self.log is not None and (known := self.log.known(trial)) is not None:
                found[number] = known
        new = [number for number in range(len(trials)) if number not in found]
        for place, outcome in self.workers.results([trials[number] for number in new]):
            result = refusal(str(outcome)) if isinstance(outcome, Died) else outcome
            found[new[place]] = result
            if self.log is not None and not isinstance(outcome, Died):
                self.log.keep(trials[new[place]], result)
            self.num_done += 1
            self.on_progress(self.num_done, self.num_done + max(self._expected, len(trials) - len(found)))
        self._expected -= len(trials)
        for result in found.values():
            if result.no_traffic is not None:
                raise ConfigError(result.no_traffic)
            if result.bug is not None:
                remark(f"sundog: please report this bug of a trial\n{result.bug.rstrip()}")
        return [found[number] for number in range(len(trials))]


@contextmanager
def fleets(
    plan: "Plan",
    num_processes: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    on: str | None = None,
    out: str | None = None,
    reading: "ReadingOptions | None" = None,
    cells: "Sequence[Settings]" = (),
) -> "Iterator[Fleets]":
    """Start the processes that run trials, and end them after the `with` block: one per core if no number is
    given.

    `on` is a cluster for them. With a folder, its earlier trials are reused.
    """
    run = TrialRunner(plan).trial
    with ExitStack() as stack:
        log = None
        if out is not None:
            kept = KeptFolder(Path(out), "plan", ASKED)
            stack.enter_context(kept.alone())
            asked = identity(plan, reading, kept.path, cells)
            kept.begin({name: value for name, value in asked.items() if name not in SEARCHED})
            log = TrialLog(kept.path / TRIALS)
        crew, count = here(run), num_processes or os.cpu_count() or 1
        if on is not None:
            crew, count = on_cluster(run, refusal, None, on, num_processes or 0, stack)
        workers: Workers[Any, Any] = stack.enter_context(Workers(crew, count))
        yield Fleets(workers, count, on_progress or (lambda done, asked: None), log)
