"""A cost model whose every step takes `factor` times as long, to see how much depends on its exactness."""

from actors.core.records import dataclass
from sim.cost.pipeline import Pipeline
from sim.cost.work import CostModel, Seconds, StepWork


def scaled(model: CostModel, factor: float) -> CostModel:
    """`model` with every step `factor` times as long."""
    if factor == 1:
        return model
    return model.scaled(factor) if isinstance(model, Pipeline) else Scaled(model, factor)


@dataclass(frozen=True, slots=True)
class Scaled(CostModel):
    """`model` times `factor`."""

    model: CostModel
    factor: float

    def step_s(self, work: StepWork) -> float:
        """Seconds of one step."""
        return self.model.step_s(work) * self.factor

    def few_s(self, work: StepWork, num_steps: int) -> list[float]:
        """The same of each of a few steps of a decode run."""
        return [seconds * self.factor for seconds in self.model.few_s(work, num_steps)]

    def run_s(self, work: StepWork, num_steps: int) -> Seconds:
        """Seconds of each step of a decode run."""
        seconds: Seconds = self.model.run_s(work, num_steps) * self.factor
        return seconds
