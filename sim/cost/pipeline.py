"""The cost of a step that passes through stages of layers: what each stage takes, and the way between them.

A step alone takes the sum. Stages work at once on different batches; when each begins is
`sim.pipelined`'s to say. Between stages a token's hidden state and its residual go over the link
(`send_token_s`), after `send_latency_s`.
"""

import numpy as np

from sim.cost.overhead import HostOverhead
from sim.cost.work import CostModel, Seconds, StepWork


def without_samples(work: StepWork) -> StepWork:
    """The same work where the output head is at another stage."""
    return StepWork(
        work.num_decodes,
        work.decode_context_tokens,
        work.chunks,
        0,
        work.num_shared_tokens,
        work.num_draft_tokens,
    )


class Pipeline(CostModel):
    """`stages`, the last with the output head, and the one host that plans for all of them.

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
        """The same with every step `factor` times as long."""
        sends = self._send_latency_s, self._send_token_s
        return Pipeline(self.stages, self.overhead, *sends, factor * self.factor)

    def stages_s(self, work: StepWork) -> list[float]:
        """Seconds of each stage."""
        inner, factor = without_samples(work), self.factor
        seconds = [stage.step_s(inner) * factor for stage in self.stages[:-1]]
        seconds.append(self.stages[-1].step_s(work) * factor)
        return seconds

    def send_s(self, work: StepWork) -> float:
        """Seconds from the end of a stage to the begin of the next."""
        if not work.num_tokens:
            return 0.0
        return (self._send_latency_s + work.num_tokens * self._send_token_s) * self.factor

    def host_s(self, work: StepWork) -> float:
        """Seconds of the host's own work for the step."""
        if not work.num_tokens:
            return 0.0
        overhead = self.overhead
        seconds = overhead.step_s + overhead.token_s * work.num_samples
        return (seconds + overhead.chunk_s * len(work.chunks)) * self.factor

    def step_s(self, work: StepWork) -> float:
        """Seconds of a step while no other is under way."""
        seconds = 0.0
        for stage_s in self.stages_s(work):
            seconds += stage_s
        seconds += (len(self.stages) - 1) * self.send_s(work)
        host_s = self.host_s(work)
        return max(seconds, host_s) if self.overhead.overlaps else seconds + host_s

    def run_s(self, work: StepWork, num_steps: int) -> Seconds:
        """Seconds of each step of a decode run, each after the one before it."""
        return np.array(self.few_s(work, num_steps), dtype=np.float64)
