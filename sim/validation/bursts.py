"""Waits of requests that come together: the upper end of what an API process does to them.

A replay passes requests on in stages, which is right for 8 and 32 that come together, and for most servers
that got a thousand. But 1,000 prompts of 128 tokens on a server of Qwen3-14B (A100, vLLM 0.11) ended 27 s
after they came, where a replay says 19: it was as if they were read once more. The upper end of a range
therefore holds all of them back for as long as the processes read.
"""

import math

import numpy as np

from sundog.actors.config.front_costs import FrontCosts
from sundog.sim.validation.measured import Floats

TOGETHER = 33
"""Fewest requests without a pause that may all wait for the last; up to 32 were measured and do not."""


def held_back_s(arrivals_s: Floats, front: FrontCosts) -> Floats:
    """Return the seconds by which each request may reach the engine later, in the order of `arrivals_s`.

    Requests follow each other without a pause as long as the processes are busy.
    """
    held = np.zeros(len(arrivals_s))
    service_s = (front.request + front.response) / front.processes
    if not service_s or len(arrivals_s) < TOGETHER:
        return held
    order = np.argsort(arrivals_s, kind="stable")
    first, busy_until_s = 0, -math.inf
    for place, arrival_s in enumerate([*arrivals_s[order].tolist(), math.inf]):
        if arrival_s >= busy_until_s:
            if place - first >= TOGETHER:
                group = order[first:place]
                held[group] = busy_until_s - arrivals_s[group]
            first, busy_until_s = place, arrival_s
        busy_until_s += service_s
    return held
