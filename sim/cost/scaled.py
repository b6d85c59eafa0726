"""A cost model whose every step takes `factor` times as long, to see how much depends on its exactness."""

from dataclasses import dataclass

from sim.cost.work import CostModel, Seconds, StepWork


@dataclass(frozen=True, slots=True)
class Scaled(CostModel):
    """`model` times `factor`."""

    model: CostModel
    factor: float

    def step_s(self, work: StepWork) -> float:
        """Seconds of one step."""
        return self.model.step_s(work) * self.factor

    def run_s(self, work: StepWork, num_steps: int) -> Seconds:
        """Seconds of each step of a decode run."""
        seconds: Seconds = self.model.run_s(work, num_steps) * self.factor
        return seconds
