"""Time that the host adds to a step, kept apart from the GPU's so that it can be switched off."""

from dataclasses import dataclass

import numpy as np

from sim.cost.work import CostModel, Seconds, StepWork


@dataclass(frozen=True, slots=True)
class HostOverhead:
    """Seconds the host adds to every step, to a token, to a step that prefills, and to a request.

    A token's are those of each request that samples in a step: scheduling it and taking in its
    token. A request's are spent at the front end (HTTP, tokenising, the first detokenising): the
    client sees them and the GPU does not. With `overlaps` the host works while the GPU does, and a
    step takes the longer of the two.
    """

    step_s: float = 0.0008
    token_s: float = 12e-6
    prefill_step_s: float = 0.003
    request_s: float = 0.017
    overlaps: bool = False


NO_OVERHEAD = HostOverhead(0.0, 0.0, 0.0, 0.0)
ASYNC_OVERHEAD = HostOverhead(prefill_step_s=0.0, request_s=0.008, overlaps=True)


def host_overhead(async_scheduling: bool) -> HostOverhead:
    """The host's share as fitted to one run: vLLM 0.23, Qwen3-14B on an H100, 2 requests a second.

    Without async scheduling: 0.8 ms a step (scheduling, input preparation and launch that the GPU
    waits for), 3 ms a prefill step (attention metadata, no captured graph) and 17 ms a request.
    With it a request waits for the step that is planned already, and the host's work is hidden;
    8 ms a request are left (`sundog validate`). The 12 microseconds a token are not fitted: vLLM
    0.32's scheduler took 3.1 ms a step for 256 requests on a 2-core machine.
    """
    return ASYNC_OVERHEAD if async_scheduling else HostOverhead()


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
        host_s = overhead.step_s + overhead.token_s * work.num_samples
        seconds = max(seconds, host_s) if overhead.overlaps else seconds + host_s
        return seconds + overhead.prefill_step_s if work.chunks else seconds

    def run_s(self, work: StepWork, num_steps: int) -> Seconds:
        """Seconds of each step of a decode run."""
        seconds = self.model.run_s(work, num_steps)
        host_s = self.overhead.step_s + self.overhead.token_s * work.num_samples
        return np.maximum(seconds, host_s) if self.overhead.overlaps else seconds + host_s
