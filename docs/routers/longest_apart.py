"""A router of one's own: `--router docs/routers/longest_apart.py:LongestApart`."""

from dataclasses import dataclass

from sundog import Fleet, Router, Submit


@dataclass(frozen=True)
class LongestApart(Router):
    """Prompts of `long_tokens` or more go to the last replica, so that short ones never wait behind them."""

    long_tokens: int = 4000

    def score(self, request: Submit, replica: int, fleet: Fleet) -> float:
        is_long = request.num_prompt_tokens >= self.long_tokens
        return float(is_long == (replica == fleet.up[-1])) if len(fleet.up) > 1 else 0.0
