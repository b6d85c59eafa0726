"""Learning to rank (Fu et al., NeurIPS 2024), PARS: `--policy docs/policies/learned_rank.py:LearnedRank`."""

from dataclasses import dataclass

from sundog import Policy, Rank, Request, View


@dataclass(frozen=True)
class LearnedRank(Policy):
    """The shortest predicted answer goes first; one that has waited `patience_s` goes before all others."""

    patience_s: float = 60.0

    def rank(self, request: Request, view: View) -> Rank | tuple[int, float]:
        due_s = request.submit.arrival_s + self.patience_s
        if view.now_s >= due_s:
            return (0, due_s)
        predicted = request.submit.predicted_tokens
        return Rank((1, request.submit.max_tokens if predicted is None else predicted), until_s=due_s)
