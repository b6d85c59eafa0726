"""The cost of a step of data-parallel ranks that share experts, and so go in step.

In every layer tokens go to the ranks that have their experts, and come back: no rank is ahead of another by
more than a layer. A step of all takes what its slowest rank takes, and each rank's experts see the tokens of
all. A rank without work goes along with one token, so that its experts are there for the others.
"""

from collections.abc import Sequence

from sim.cost.work import CostModel, Seconds, StepWork

IDLE_TOKENS = 1
"""What vLLM's dummy batch computes."""


class InStep(CostModel):
    """`model`, which prices a rank's step by its work and the tokens of all, for `num_ranks` in step."""

    __slots__ = ("model", "num_ranks")

    def __init__(self, model: CostModel, num_ranks: int) -> None:
        self.model, self.num_ranks = model, num_ranks

    def step_among_s(self, works: Sequence[StepWork]) -> float:
        """Seconds of a step in which ranks do these works, and the others nothing."""
        num_idle = self.num_ranks - len(works)
        num_tokens = num_idle * IDLE_TOKENS + sum(work.num_tokens for work in works)
        seconds = 0.0
        for work in works:
            work.num_routed_tokens = num_tokens
            seconds = max(seconds, self.model.step_s(work))
        return seconds

    def step_s(self, work: StepWork) -> float:
        """Seconds of a step in which only one rank has work."""
        return self.step_among_s([work]) if work.num_tokens else 0.0

    def run_s(self, work: StepWork, num_steps: int) -> Seconds:
        """Of each step of a decode run of one rank alone."""
        work.num_routed_tokens = work.num_tokens + (self.num_ranks - 1) * IDLE_TOKENS
        return self.model.run_s(work, num_steps)


def in_step(model: CostModel, num_ranks: int) -> CostModel:
    """`model` for ranks in step; itself for one."""
    return model if num_ranks == 1 else InStep(model, num_ranks)
