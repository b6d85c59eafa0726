"""Waits of requests that come together: the upper end of what an API process does to them.

A process is an event loop: a request goes back to the end of the queue wherever its handler waits (headers,
body, tokenizer), so of many that come together the first may reach the engine as late as the last. A replay
passes them on one after another, which is right for 8 and 32 of them; of 1,000 prompts of 128 tokens on a
server of Qwen3-14B (A100, vLLM 0.11) the median waited 19 s and the last 27 s, where one after another
would be 7 and 14. The upper end of a range therefore lets all wait for the last.
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
