"""The cost of steps with a draft model: the step of the model, then a pass of the draft model for each draft.

The first pass computes what the step did, the further ones a token of each request that sampled.
"""

import numpy as np

from sim.cost.work import CostModel, Seconds, StepWork


class WithDrafts(CostModel):
    """`model` with a draft model that makes `num_tokens` drafts after each step."""

    __slots__ = ("_num_tokens", "draft", "model")

    def __init__(self, model: CostModel, draft: CostModel, num_tokens: int) -> None:
        self.model, self.draft = model, draft
        self._num_tokens = num_tokens

    def step_s(self, work: StepWork) -> float:
        """Seconds of one step."""
        seconds = self.model.step_s(work)
        if not work.num_tokens:
            return seconds
        num_requests = work.num_samples - work.num_draft_tokens
        first = StepWork(
            work.num_decodes,
            work.decode_context_tokens,
            work.chunks,
            num_requests,
            work.num_shared_tokens,
            work.num_draft_tokens,
        )
        seconds += self.draft.step_s(first)
        if num_requests and self._num_tokens > 1:
            joining = work.chunks[: num_requests - work.num_decodes]
            context = work.decode_context_tokens + sum(new + before + 1 for new, before in joining)
            later = StepWork(num_requests, context, (), num_requests)
            seconds += float(self.draft.run_s(later, self._num_tokens - 1).sum())
        return seconds

    def run_s(self, work: StepWork, num_steps: int) -> Seconds:
        """Seconds of each step of a decode run, in which nothing was drafted before."""
        decodes, context = work.num_decodes, work.decode_context_tokens
        steps = [
            StepWork(decodes, context + index * decodes, (), work.num_samples, work.num_shared_tokens)
            for index in range(num_steps)
        ]
        return np.array([self.step_s(step) for step in steps], dtype=np.float64)
