"""What became of drafts in a run, in figures."""

from actors.core.acceptance import Acceptance
from actors.core.records import dataclass


@dataclass(frozen=True, slots=True)
class SpeculationFigures:
    """What became of drafts; `mean_length` counts the token after the accepted ones, too."""

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    acceptance_rate: float
    mean_length: float
    rates_by_position: tuple[float, ...]

    @classmethod
    def of(cls, counts: Acceptance) -> "SpeculationFigures | None":
        """None of a run without drafts."""
        if not counts.num_drafts:
            return None
        totals = (counts.num_drafts, counts.num_draft_tokens, counts.num_accepted_tokens)
        return cls(*totals, counts.rate, counts.mean_length, counts.rates)
