"""Part of steady traffic that a trial plays, and the requests that it judges.

The `duration_s` of a description with steady arrivals is only the length of a sample. In an empty fleet the
first requests are too fast, and a short sample does not show that a fleet slowly falls behind. A trial
therefore plays a lead-in, in which the fleet fills, and judges the requests of the following 300 s
(`--judge-s`), or of the description's duration if that is longer: a fleet that is 1 % too slow is 3 s late by
then. Traffic continues after them, so that the last ones do not see an emptying fleet.

Traces, and recorded or varying arrivals, are played as they are, and every request is judged.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

import numpy as np

if TYPE_CHECKING:
    from sundog.sim.trace.record import TraceRequest
    from sundog.sim.workload.mixture import Mixture
    from sundog.sim.workload.read import Source
    from sundog.sim.workload.spec import Workload

SAMPLED_S = 300.0
"""Seconds of sampled traffic that determine how long sessions last."""
LEAST_LEAD_S, MOST_LEAD_S = 30.0, 1800.0
TAIL_S = 30.0
"""Seconds of traffic after the judged requests."""
FULL_AT = 90.0
"""Percentile of the durations of sessions after which a fleet counts as full."""
TOKEN_S = 0.05
"""Seconds assumed per output token, for the lead-in only."""


class JudgedPart(NamedTuple):
    """Judged part of some traffic: the requests that arrive between two times.

    A later turn of a session counts by its earliest possible arrival.
    """

    begins_s: float
    ends_s: float

    @property
    def span_s(self) -> float:
        """Length of the judged part in seconds."""
        return self.ends_s - self.begins_s


def is_steady(source: "Source") -> "TypeGuard[Workload | Mixture]":
    """Return whether a workload's arrivals have a constant rate."""
    from sundog.sim.workload.distributions import Gamma, OnOff, Poisson
    from sundog.sim.workload.mixture import Mixture
    from sundog.sim.workload.spec import Workload

    if isinstance(source, Mixture):
        return all(isinstance(each.arrivals, Poisson | Gamma | OnOff) for each in source.populations)
    return isinstance(source, Workload) and isinstance(source.arrivals, Poisson | Gamma | OnOff)


def settled_traffic(
    source: "Workload | Mixture", seed: int, least_s: float
) -> "tuple[list[TraceRequest], JudgedPart]":
    """Sample a lead-in, the judged span and a tail of a steady workload, in order of arrival.

    The lead-in depends on the sessions, not on the seed, so that all trials of a plan have the same length.
    """
    lead_s = lead_in_s(replace(source, duration_s=SAMPLED_S).requests(0))
    part = JudgedPart(lead_s, lead_s + max(source.duration_s, least_s))
    return replace(source, duration_s=part.ends_s + TAIL_S).requests(seed), part


def lead_in_s(requests: "Sequence[TraceRequest]") -> float:
    """Return the seconds in which an empty fleet fills: the 90th percentile of the durations of sessions, in
    whole seconds.
    """
    lives: dict[str, float] = {}
    for row in requests:
        name = row.session or row.request_id
        lives[name] = lives.get(name, 0.0) + row.pause_s + TOKEN_S * row.num_output_tokens
    full_s = float(np.percentile(list(lives.values()), FULL_AT)) if lives else 0.0
    return float(np.ceil(min(max(full_s, LEAST_LEAD_S), MOST_LEAD_S)))
