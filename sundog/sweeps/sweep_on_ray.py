"""`sundog sweep --on ray`: the processes of a sweep on a cluster.

A run there is the run that would be made here, and leaves the same bytes in the same folder: every node has
the same Sundog, and sees the files of the sweep where this machine has them.
"""

import os
import platform
from contextlib import ExitStack
from typing import TYPE_CHECKING

from sundog.blas import one_thread
from sundog.options.placement import parse_on
from sundog.sweeps.cell import Plan, Runner
from sundog.sweeps.sweep_folder import ASKED
from sundog.sweeps.workers import Crew, Died

if TYPE_CHECKING:
    from sim.figures.played import Played
    from sim.figures.sweep import Failed, Job


class There:
    """A Runner in a process elsewhere."""

    def __init__(self, plan: Plan) -> None:
        self._runner = Runner(plan)
        self._versions = _versions()
        self._folder = None if plan.folder is None else plan.folder.path.absolute()

    def __call__(self, job: "Job") -> "Played | Failed":
        """One run, or why there can be none on this node."""
        from sim.figures.sweep import Failed

        one_thread()
        if (refusal := self._refusal()) is not None:
            return Failed(f"node {platform.node()} {refusal}")
        return self._runner(job)

    def _refusal(self) -> str | None:
        ours = _versions()
        if ours != self._versions:
            return f"has {ours}, and the sweep {self._versions}: install one on all"
        if self._folder is not None and not (self._folder / ASKED).exists():
            return f"does not see {self._folder}: --out is for a folder that all nodes share"
        return None


def on_cluster(
    plan: Plan, on: str, num_processes: int, stack: ExitStack
) -> "tuple[Crew[Job, Played | Failed], int]":
    """A crew on the cluster until `stack` ends, and how many it has: all CPUs if `num_processes` is 0."""
    from runtime.ray.cluster import joined

    cluster = stack.enter_context(joined(parse_on(on), num_processes or os.cpu_count() or 1))
    from runtime.ray.jobs import RayWorker, wait

    run = There(plan)
    crew: Crew[Job, Played | Failed] = Crew(lambda: RayWorker(run, Died), wait)
    return crew, num_processes or max(int(cluster.num("CPU")), 1)


def _versions() -> str:
    from sim.record.run_id import sundog_version

    return f"Sundog {sundog_version()} for Python {'.'.join(platform.python_version_tuple()[:2])}"
