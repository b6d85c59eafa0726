"""Predictions: `--predictor docs/by_prompt.py:ByPrompt:per_token=0.5`."""

from dataclasses import dataclass

from sundog import Predictor, Unanswered


@dataclass(frozen=True)
class ByPrompt(Predictor):
    """Long prompts have long answers; a replay mixes the truth in, for as much as `insight` says."""

    per_token: float = 0.3
    insight: float = 0.0

    def predict(self, request: Unanswered) -> int | None:
        guess = self.per_token * request.num_prompt_tokens
        truth = guess if request.num_output_tokens is None else request.num_output_tokens
        return max(round(self.insight * truth + (1 - self.insight) * guess), 1)
