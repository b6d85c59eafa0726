"""Print the roofline's TPOT and lone-prompt TTFT beside those of real vLLM servers.

Run: `python -m tests.sim.roofline_points`. A steady state is solved, nothing is simulated: N
requests decode at once, N = rate x output x TPOT (Little's law), and TPOT is a decode step plus
the share of steps that also prefill one prompt. The measured figures are means of public records:
vLLM 0.15.1 (Llama-2; repeated prompts, so that a prefill computes about one block) and vLLM 0.23
(Qwen3). The H100 efficiencies were fitted to these points: the agreement is no prediction.
"""

from dataclasses import dataclass

from sundog.sim.cost.overhead import ASYNC_OVERHEAD, NO_OVERHEAD, HostOverhead, WithOverhead
from sundog.sim.cost.roofline import Roofline
from sundog.sim.cost.work import StepWork
from sundog.sim.hardware.gpu import load_gpu
from sundog.sim.hardware.model import load_model


@dataclass(frozen=True)
class Point:
    """One load of one server; times in ms."""

    model: str
    ranks: int
    rate: float
    prompt_tokens: int
    new_tokens: int
    output_tokens: int
    tpot_ms: float


POINTS = (
    Point("llama-2-7b", 1, 5, 592, 16, 247, 7.257),
    Point("llama-2-7b", 1, 10, 592, 16, 247, 8.888),
    Point("llama-2-7b", 1, 6, 786, 16, 251, 8.176),
    Point("llama-2-7b", 1, 8, 575, 16, 248, 8.221),
    Point("llama-2-7b", 1, 20, 575, 16, 248, 16.625),
    Point("llama-2-70b", 4, 5, 593, 16, 247, 17.396),
    Point("llama-2-70b", 4, 6, 787, 16, 251, 18.027),
    Point("llama-2-70b", 4, 8, 575, 16, 248, 18.709),
    Point("llama-2-70b", 4, 10, 593, 16, 247, 19.045),
    Point("llama-2-70b", 4, 20, 575, 16, 248, 22.090),
    Point("qwen3-14b", 1, 2.02, 986, 986, 128, 12.33),
)


def predicted_s(point: Point, overhead: HostOverhead) -> float:
    """Mean seconds per output token in the steady state."""
    roofline = Roofline(load_model(point.model), load_gpu("h100"), tensor_parallel_size=point.ranks)
    cost = WithOverhead(roofline, overhead)
    tpot_s = 0.01
    for _ in range(200):
        running = max(1, round(point.rate * point.output_tokens * tpot_s))
        context = running * (point.prompt_tokens + point.output_tokens // 2)
        step_s = cost.step_s(StepWork(running, context, (), running))
        chunk = (point.new_tokens, point.prompt_tokens - point.new_tokens)
        mixed_s = cost.step_s(StepWork(running, context, (chunk,), running + 1))
        tpot_s = 0.5 * tpot_s + 0.5 * (step_s + point.rate * tpot_s * (mixed_s - step_s))
    return tpot_s


if __name__ == "__main__":
    for point in POINTS:
        with_host = predicted_s(point, ASYNC_OVERHEAD) * 1e3
        without = predicted_s(point, NO_OVERHEAD) * 1e3
        print(
            f"{point.model:12} tp{point.ranks} {point.rate:5.2f}/s  measured {point.tpot_ms:6.2f}"
            f"  roofline {without:6.2f}  with host {with_host:6.2f} ms"
            f"  ({with_host / point.tpot_ms - 1:+.1%})"
        )
