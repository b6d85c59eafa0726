"""Ranks that move: `--policy docs/response_ratio.py:ResponseRatio`."""

from sundog import Policy, Rank, Request, View


class ResponseRatio(Policy):
    """The longest wait for each token of the prompt goes first: short prompts soon, long ones in the end."""

    def rank(self, request: Request, view: View) -> Rank:
        # -(now_s - arrival_s) / tokens, as a rank at the time 0 and what each second adds
        tokens = request.submit.num_prompt_tokens
        return Rank(request.submit.arrival_s / tokens, per_s=-1 / tokens)
