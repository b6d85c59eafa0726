"""A calibrated cost model that knows to which sizes of steps it was fitted."""

from dataclasses import field

from actors.core.records import dataclass
from sim.cost.calibrated import Calibrated
from sim.cost.tables.interpolate import Coverage
from sim.cost.work import CostModel, Seconds, StepWork


@dataclass(frozen=True, slots=True)
class Range:
    """The largest step that was observed, by each of its sizes."""

    tokens: float
    context_tokens: float
    decodes: float
    prefill_pairs: float


@dataclass(frozen=True, slots=True)
class InRange(CostModel):
    """`model`, and in `coverage` how far beyond `measured` it was asked.

    `doubt` is how far its steps were off where nothing was fitted, as a share; 0 where that is not known.
    """

    model: Calibrated
    measured: Range
    coverage: Coverage = field(default_factory=Coverage)
    doubt: float = 0.0

    def step_s(self, work: StepWork) -> float:
        """Seconds of one step."""
        self._note(work, work.decode_context_tokens)
        return self.model.step_s(work)

    def run_s(self, work: StepWork, num_steps: int) -> Seconds:
        """Seconds of each step of a decode run."""
        self._note(work, work.decode_context_tokens + (num_steps - 1) * work.num_decodes)
        return self.model.run_s(work, num_steps)

    def _note(self, work: StepWork, context_tokens: int) -> None:
        most, note = self.measured, self.coverage.note
        note("tokens of a step", work.num_tokens, 0.0, max(most.tokens, 1.0))
        note("context of its decodes", context_tokens, 0.0, max(most.context_tokens, 1.0))
        note("its decodes", work.num_decodes, 0.0, max(most.decodes, 1.0))
        if work.chunks:
            note("prefill attention", work.prefill_pairs, 0.0, max(most.prefill_pairs, 1.0))
