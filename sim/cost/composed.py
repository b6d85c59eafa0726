"""Composed costs: with a draft model, of ranks in step, of pipeline stages, and scaled.

Drafts: after the step of the model, the draft model makes a pass for each draft. The first pass computes what
the step did, the further ones a token of each request that sampled.

Ranks in step share experts: in every layer tokens are sent to the ranks with their experts and back, so that
no rank is ahead of another by more than a layer. A common step takes as long as its slowest rank, and each
rank's experts compute the tokens of all. A rank without work takes part with one token, so that its experts
are available.

Pipeline: a step alone takes the sum of its stages. Stages work at once on different batches;
`sundog.sim.pipelined` decides when each begins. Between stages a token's hidden state and its residual go
over the link (`send_token_s`), after `send_latency_s`.
"""

from collections.abc import Sequence

import numpy as np

from sundog.actors.core.records import dataclass
from sundog.sim.cost.overhead import HostOverhead
from sundog.sim.cost.work import CostModel, Seconds, StepWork


class WithDrafts(CostModel):
    """`model` with a draft model that makes `num_tokens` drafts after each step."""

    __slots__ = ("_num_tokens", "draft", "model")

    def __init__(self, model: CostModel, draft: CostModel, num_tokens: int) -> None:
        self.model, self.draft = model, draft
        self._num_tokens = num_tokens

    def step_s(self, work: StepWork) -> float:
        """Return the seconds of one step."""
        seconds = self.model.step_s(work)
        if not work.num_tokens:
            return seconds
        num_requests = work.num_samples - work.num_draft_tokens
        first = StepWork(
            work.num_decodes,
            work.decode_context_tokens,
            chunks=work.chunks,
            num_samples=num_requests,
            num_shared_tokens=work.num_shared_tokens,
            num_draft_tokens=work.num_draft_tokens,
        )
        seconds += self.draft.step_s(first)
        if num_requests and self._num_tokens > 1:
            joining = work.chunks[: num_requests - work.num_decodes]
            context = work.decode_context_tokens + sum(new + before + 1 for new, before in joining)
            later = StepWork(num_requests, context, (), num_requests)
            seconds += float(self.draft.run_s(later, self._num_tokens - 1).sum())
        return seconds

    def run_s(self, work: StepWork, num_steps: int) -> Seconds:
        """Return the seconds of each step of a decode run, in which nothing was drafted before."""
        decodes, context = work.num_decodes, work.decode_context_tokens
        steps = [
            StepWork(
                decodes,
                context + index * decodes,
                chunks=(),
                num_samples=work.num_samples,
                num_shared_tokens=work.num_shared_tokens,
            )
            for index in range(num_steps)
        ]
        return np.array([self.step_s(step) for step in steps], dtype=np.float64)


IDLE_TOKENS = 1
"""Tokens in the batch that vLLM computes on a rank without work."""


class InStep(CostModel):
    """Cost of `num_ranks` in step: `model` prices a rank's step by its work and the tokens of all."""

    __slots__ = ("model", "num_ranks")

    def __init__(self, model: CostModel, num_ranks: int) -> None:
        self.model, self.num_ranks = model, num_ranks

    def step_among_s(self, works: Sequence[StepWork]) -> float:
        """Return the seconds of a step in which ranks do these works, and the others nothing."""
        num_idle = self.num_ranks - len(works)
        num_tokens = num_idle * IDLE_TOKENS + sum(work.num_tokens for work in works)
        seconds = 0.0
        for work in works:
            work.num_routed_tokens = num_tokens
            seconds = max(seconds, self.model.step_s(work))
        return seconds

    def step_s(self, work: StepWork) -> float:
        """Return the seconds of a step in which only one rank has work."""
        return self.step_among_s([work]) if work.num_tokens else 0.0

    def run_s(self, work: StepWork, num_steps: int) -> Seconds:
        """Return the seconds of each step of a decode run of one rank alone."""
        work.num_routed_tokens = work.num_tokens + (self.num_ranks - 1) * IDLE_TOKENS
        return self.model.run_s(work, num_steps)


def in_step(model: CostModel, num_ranks: int) -> CostModel:
    """Return `model` for ranks in step; unchanged for one rank."""
    return model if num_ranks == 1 else InStep(model, num_ranks)


def without_samples(work: StepWork) -> StepWork:
    """Return the work without samples, for a stage without the output head."""
    return StepWork(
        work.num_decodes,
        work.decode_context_tokens,
        chunks=work.chunks,
        num_samples=0,
        num_shared_tokens=work.num_shared_tokens,
        num_draft_tokens=work.num_draft_tokens,
    )


class Pipeline(CostModel):
    """Pipeline of `stages`, the last with the output head, and the one host that plans for all.

    Every second is multiplied by `factor`.
    """

    __slots__ = ("_send_latency_s", "_send_token_s", "factor", "overhead", "stages")

    def __init__(
        self,
        stages: tuple[CostModel, ...],
        overhead: HostOverhead,
        send_latency_s: float,
        send_token_s: float,
        factor: float = 1.0,
    ) -> None:
        self.stages, self.overhead, self.factor = stages, overhead, factor
        self._send_latency_s, self._send_token_s = send_latency_s, send_token_s

    def scaled(self, factor: float) -> "Pipeline":
        """Return the pipeline with every step `factor` times as long."""
        sends = self._send_latency_s, self._send_token_s
        return Pipeline(self.stages, self.overhead, *sends, factor * self.factor)

    def stages_s(self, work: StepWork) -> list[float]:
        """Return the seconds of each stage."""
        inner, factor = without_samples(work), self.factor
        seconds = [stage.step_s(inner) * factor for stage in self.stages[:-1]]
        seconds.append(self.stages[-1].step_s(work) * factor)
        return seconds

    def send_s(self, work: StepWork) -> float:
        """Return the seconds from the end of a stage to the begin of the next."""
        if not work.num_tokens:
            return 0.0
        return (self._send_latency_s + work.num_tokens * self._send_token_s) * self.factor

    def host_s(self, work: StepWork) -> float:
        """Return the seconds of the host's own work for the step."""
        if not work.num_tokens:
            return 0.0
        overhead = self.overhead
        seconds = overhead.step_s + overhead.token_s * work.num_samples
        return (seconds + overhead.chunk_s * len(work.chunks)) * self.factor

    def step_s(self, work: StepWork) -> float:
        """Return the seconds of a step while no other is in flight."""
        seconds = 0.0
        for stage_s in self.stages_s(work):
            seconds += stage_s
        seconds += (len(self.stages) - 1) * self.send_s(work)
        host_s = self.host_s(work)
        return max(seconds, host_s) if self.overhead.overlaps else seconds + host_s

    def run_s(self, work: StepWork, num_steps: int) -> Seconds:
        """Return the seconds of each step of a decode run, each after the previous one."""
        return np.array(self.few_s(work, num_steps), dtype=np.float64)


def scaled(model: CostModel, factor: float) -> CostModel:
    """Return `model` with every step `factor` times as long."""
    if factor == 1:
        return model
    if isinstance(model, InStep):
        return InStep(scaled(model.model, factor), model.num_ranks)
    return model.scaled(factor) if isinstance(model, Pipeline) else ScaledCost(model, factor)


@dataclass(slots=True)
class ScaledCost(CostModel):
    """Cost of `model` times `factor`; a straggler's factor changes during the run."""

    model: CostModel
    factor: float

    def step_s(self, work: StepWork) -> float:
        """Return the seconds of one step."""
        return self.model.step_s(work) * self.factor

    def few_s(self, work: StepWork, num_steps: int) -> list[float]:
        """Return the seconds of each of a few steps of a decode run."""
        return [seconds * self.factor for seconds in self.model.few_s(work, num_steps)]

    def run_s(self, work: StepWork, num_steps: int) -> Seconds:
        """Return the seconds of each step of a decode run."""
        seconds: Seconds = self.model.run_s(work, num_steps) * self.factor
        return seconds
