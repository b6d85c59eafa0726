"""Search for the largest load at which a fleet meets its objectives, for the command and
`sundog.capacity`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sundog.actors.config import ConfigError
from sundog.planning.advice import LargestLoad, largest_loads
from sundog.planning.fleets import fleets
from sundog.planning.search import MOST_LOAD
from sundog.sim.figures.intervals import Interval, mean_interval
from sundog.sim.show.progress import runs_progress
from sundog.sweeps.cell import Plan
from sundog.sweeps.source import check_tenants

if TYPE_CHECKING:
    from sundog.options.capacity import CapacityTerms
    from sundog.options.simulation import TermsOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCapacity:
    """Largest load of each sample, and the means: as a factor, and in requests per second."""

    loads: tuple[LargestLoad, ...]
    factor: Interval
    requests_per_s: Interval

    @property
    def is_most_tried(self) -> bool:
        """Whether a sample passes even at the largest load that is tried."""
        return any(each.factor == MOST_LOAD for each in self.loads)


def find_capacity(
    shared: Plan, terms: "TermsOptions", num_replicas: int, asked: "CapacityTerms"
) -> FoundCapacity:
    """Search each sample's largest load.

    Raises ConfigError without an objective of a run, and if the load cannot be raised.
    """
    objectives = terms.service_level.objectives
    if not objectives:
        raise ConfigError("--slo names no objective of a run: give a percentile, as in --slo 'p95(ttft)<1'")
    check_tenants(shared, [{}], [each.metric for each in objectives])
    num_seeds = 1 if shared.is_fixed({}) else asked.replications
    with runs_progress("trials") as on_progress, fleets(shared, asked.jobs, on_progress, asked.on) as made:
        found = largest_loads(made, num_replicas, num_seeds, asked.resolution)
    every = ([each.factor for each in found], [each.requests_per_s for each in found])
    factor, rate = (mean_interval(np.array(each), asked.confidence) for each in every)
    return FoundCapacity(loads=tuple(found), factor=factor, requests_per_s=rate)
