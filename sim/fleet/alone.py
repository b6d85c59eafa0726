"""Prompts that miss a TTFT limit even on an engine without other work, so that no number of replicas
helps.
"""

from bisect import bisect_left
from collections.abc import Mapping

from sundog.sim.cost.composed import Pipeline
from sundog.sim.cost.work import CostModel, StepWork
from sundog.sim.fleet.figures import MissedAlone


def missed_alone(cost: CostModel, prompts: Mapping[int, int], ttft_s: float) -> MissedAlone | None:
    """Return the prompts that take longer than `ttft_s` in one step of their own; None if there are none.

    `prompts` counts them by length. A step of a whole prompt is the least that its engine needs without
    cached tokens. O(log lengths) steps are priced.
    """
    if isinstance(cost, Pipeline):  # Its stages take their parts of a step in turn.
        return None

    def alone_s(num_tokens: int) -> float:
        return cost.step_s(StepWork(0, 0, ((num_tokens, 0),), 1))

    lengths = sorted(prompts)
    place = bisect_left(lengths, True, key=lambda num_tokens: alone_s(num_tokens) > ttft_s)
    if place == len(lengths):
        return None
    num_missed = sum(prompts[each] for each in lengths[place:])
    first = lengths[place]
    return MissedAlone(
        ttft_s, sum(prompts.values()), num_missed=num_missed, from_tokens=first, from_s=alone_s(first)
    )
