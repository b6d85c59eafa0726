"""Time that the host adds to a step, kept apart from the GPU's so that it can be switched off."""

from dataclasses import dataclass, replace

import numpy as np

from sim.cost.work import CostModel, Seconds, StepWork


@dataclass(frozen=True, slots=True)
class HostOverhead:
    """Seconds the host adds to every step, again to a step that prefills, and to a request.

    The last is spent at the front end (HTTP, tokenising, the first detokenising): the client sees
    it and the GPU does not. With `overlaps` the host works while the GPU does, and a step takes
    the longer of the two; `ranks_step_s` is never hidden: until every rank has its batch.
    """

    step_s: float = 0.0008
    prefill_step_s: float = 0.003
    request_s: float = 0.017
    overlaps: bool = False
    ranks_step_s: float = 0.0


NO_OVERHEAD = HostOverhead(0.0, 0.0, 0.0)
ASYNC_OVERHEAD = HostOverhead(0.0008, 0.0, 0.008, overlaps=True)


RANKS_STEP_S = 0.00094
"""Fitted to one load of vLLM 0.15.1, Llama-2-70b on four H100 at 5 requests a second."""


def host_overhead(async_scheduling: bool, tensor_parallel_size: int = 1) -> HostOverhead:
    """The host's share as fitted to one run: vLLM 0.23, Qwen3-14B on an H100, 2 requests a second.

    Without async scheduling: 0.8 ms a step (scheduling, input preparation and launch that the GPU
    waits for), 3 ms a prefill step (attention metadata, no captured graph) and 17 ms a request.
    With it a request waits for the step that is planned already, and the host's work is hidden;
    8 ms a request are left (`sundog validate`).
    """
    overhead = ASYNC_OVERHEAD if async_scheduling else HostOverhead()
    return replace(overhead, ranks_step_s=RANKS_STEP_S) if tensor_parallel_size > 1 else overhead


@dataclass(frozen=True, slots=True)
class WithOverhead:
    """`model` plus the host's share; implements CostModel."""

    model: CostModel
    overhead: HostOverhead

    def step_s(self, work: StepWork) -> float:
        """Seconds of one step."""
        seconds, overhead = self.model.step_s(work), self.overhead
        if not work.num_tokens:
            return seconds
        if overhead.overlaps:
            seconds = max(seconds, overhead.step_s)
        else:
            seconds += overhead.step_s
        seconds += overhead.ranks_step_s
        return seconds + overhead.prefill_step_s if work.chunks else seconds

    def run_s(self, work: StepWork, num_steps: int) -> Seconds:
        """Seconds of each step of a decode run."""
        seconds = self.model.run_s(work, num_steps)
        if self.overhead.overlaps:
            seconds = np.maximum(seconds, self.overhead.step_s)
        else:
            seconds = seconds + self.overhead.step_s
        return seconds + self.overhead.ranks_step_s
