"""Time that the host adds to a step, kept apart from the GPU's so that it can be switched off."""

from dataclasses import dataclass

from sim.cost.work import CostModel, Seconds, StepWork


@dataclass(frozen=True, slots=True)
class HostOverhead:
    """Seconds the host adds to every step, again to a step that prefills, and to a request.

    The defaults were fitted to one run of vLLM 0.23 with Qwen3-14B on an H100 at 2 requests a
    second: 0.8 ms a step (scheduling, input preparation and launch that the GPU waits for), 3 ms a
    prefill step (attention metadata, no captured graph) and 17 ms a request at the front end (HTTP,
    tokenising, the first detokenising), which the client sees and the GPU does not.
    """

    step_s: float = 0.0008
    prefill_step_s: float = 0.003
    request_s: float = 0.017


NO_OVERHEAD = HostOverhead(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class WithOverhead:
    """`model` plus the host's share; implements CostModel."""

    model: CostModel
    overhead: HostOverhead

    def step_s(self, work: StepWork) -> float:
        """Seconds of one step."""
        if not work.num_tokens:
            return self.model.step_s(work)
        return self.model.step_s(work) + self._host_s(work)

    def run_s(self, work: StepWork, num_steps: int) -> Seconds:
        """Seconds of each step of a decode run."""
        return self.model.run_s(work, num_steps) + self._host_s(work)

    def _host_s(self, work: StepWork) -> float:
        prefill_s = self.overhead.prefill_step_s if work.chunks else 0.0
        return self.overhead.step_s + prefill_s
