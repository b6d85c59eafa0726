"""Time that the host adds to a step, kept apart from the GPU's so that it can be switched off.

Batches that vLLM replays from captured graphs are launched in one go; the others kernel by kernel. Which
batches have a graph, and what they are padded to, is vLLM's own rule (`_set_cudagraph_sizes`): graphs up to
twice what all requests that may run decode in a step, but at most `MOST_TOKENS`, and never beyond a step's
budget.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from sundog.actors.core.engine_version import parse_version
from sundog.sim.cost.work import CostModel, Seconds, StepWork
from sundog.sim.hardware.gpu import Gpu

MOST_TOKENS: Final = 512
MOST_TOKENS_BLACKWELL: Final = 1024
"""The most tokens on data-centre Blackwell (compute capability 10), merged in July 2026."""
BLACKWELL_SINCE: Final = (0, 32)
"""The first vLLM known to do so."""


def graph_sizes(most_tokens: int) -> list[int]:
    """Numbers of tokens for which graphs are captured: a batch is padded to the next."""
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, most_tokens + 1, 16)]
    return [size for size in sizes if size <= most_tokens]


def largest_graph(
    gpu: Gpu, version: str, max_num_seqs: int, max_num_batched_tokens: int, num_drafts: int = 0
) -> int:
    """Tokens of the largest batch that is replayed; larger ones are launched kernel by kernel."""
    is_blackwell = 10 <= gpu.compute_capability < 11 and parse_version(version) >= BLACKWELL_SINCE
    most = MOST_TOKENS_BLACKWELL if is_blackwell else MOST_TOKENS
    decodes = max_num_seqs * (1 + num_drafts)
    if max_num_batched_tokens <= min(2 * decodes, most):
        return max_num_batched_tokens
    return graph_sizes(min(2 * decodes, most))[-1]


@dataclass(frozen=True, slots=True)
class HostOverhead:
    """Seconds the host adds to every step, to a token, to a layer without a graph, and to a request.

    `gap_s` is what lies between the layers of two steps whatever the host does meanwhile: sampling,
    the copies of a batch's indices, launching a graph. `step_s`, `token_s` and `chunk_s` are scheduling,
    taking in the token of each request that samples, and chunks of prompts; with `overlaps` the host
    does that while the GPU works, and a step takes the longer of the two. Where the batch is too large
    for a captured graph launching a layer's kernels takes the host `eager_layer_s`
    (`eager_rank_layer_s` with all-reduces between ranks), with experts `eager_experts_s` more: no such
    step is shorter.
    `request_s` is spent on each request at the front end (HTTP, tokenising, the first detokenising):
    the client sees it and the GPU does not.
    """

    gap_s: float = 0.0
    step_s: float = 0.0
    token_s: float = 0.0
    chunk_s: float = 0.0
    eager_layer_s: float = 0.0
    eager_rank_layer_s: float = 0.0
    eager_experts_s: float = 0.0
    request_s: float = 0.0
    overlaps: bool = False

    def launches_s(self, num_layers: int, ranks: int, num_with_experts: int = 0) -> float:
        """Return the least that a step without a graph takes, with experts in some of its layers."""
        layer_s = self.eager_layer_s if ranks == 1 else self.eager_rank_layer_s
        return num_layers * layer_s + num_with_experts * self.eager_experts_s


NO_OVERHEAD = HostOverhead()
EAGER_LAYER_S, EAGER_RANK_LAYER_S = 0.0005, 0.00083
LAYER_KERNELS, MORE_KERNELS = 10, 5
"""A Llama's layer on one rank: two norms, rotary embedding, a write to the cache, attention, four products,
the activation. Experts have eight in place of two products and the activation: the router's product, the
choice, two that sort tokens by expert, two products, the activation, the sum (vLLM's `fused_experts`)."""
EAGER_EXPERTS_S = EAGER_LAYER_S / LAYER_KERNELS * MORE_KERNELS
ASYNC_OVERHEAD = HostOverhead(
    gap_s=0.00043,
    step_s=0.0008,
    token_s=12e-6,
    eager_layer_s=EAGER_LAYER_S,
    eager_rank_layer_s=EAGER_RANK_LAYER_S,
    eager_experts_s=EAGER_EXPERTS_S,
    request_s=0.007,
    overlaps=True,
)
SYNC_OVERHEAD = HostOverhead(
    gap_s=0.00043,
    token_s=12e-6,
    eager_layer_s=EAGER_LAYER_S,
    eager_rank_layer_s=EAGER_RANK_LAYER_S,
    eager_experts_s=EAGER_EXPERTS_S,
    request_s=0.0185,
)


def host_overhead(async_scheduling: bool) -> HostOverhead:
    """The host's share as fitted to one run: vLLM 0.23, Qwen3-14B on an H100, 2 requests a second.

    Its steps of 1, 2, 4, 8, 9 and 10 decodes take 0.37 to 0.50 ms longer than their kernels; 7 ms a request
    are left at the front end. The run was asynchronous. No synchronous server was measured: the run played
    synchronously needs 18.5 ms a request, for nothing waits for a step that is planned already, and what a
    token costs the host is added to its step. These 12 microseconds are not fitted: vLLM 0.32's scheduler
    took 3.1 ms a step for 256 requests on a 2-core machine.

    Launching layers without a graph is fitted to the p99 of two servers whose first hundred prompts
    miss the prefix cache, the other ones hit it: Llama-2-70b on four H100 takes 72 ms for such a
    prefill of 593 tokens, whose kernels take 43, and Llama-2-7b on one 16 ms instead of 12. Layers with
    experts take as much longer as they have more kernels than Llama-2-7b's.
    """
    return ASYNC_OVERHEAD if async_scheduling else SYNC_OVERHEAD


@dataclass(frozen=True, slots=True)
class WithOverhead(CostModel):
    """`model` plus the host's share.

    `launches_s` is the least that a step without a graph takes (`HostOverhead.launches_s`); those of up to
    `captured_tokens` have one.
    """

    model: CostModel
    overhead: HostOverhead
    launches_s: float = 0.0
    captured_tokens: int = MOST_TOKENS

    def step_s(self, work: StepWork) -> float:
        """Return the seconds of one step."""
        seconds, overhead = self.model.step_s(work), self.overhead
        num_tokens = work.num_tokens
        if not num_tokens:
            return seconds
        seconds += overhead.gap_s
        if num_tokens > self.captured_tokens:
            seconds = max(seconds, self.launches_s)
        host_s = overhead.step_s + overhead.token_s * work.num_samples
        host_s += overhead.chunk_s * len(work.chunks)
        return max(seconds, host_s) if overhead.overlaps else seconds + host_s

    def few_s(self, work: StepWork, num_steps: int) -> list[float]:
        """Seconds of each of a few steps of a decode run."""
        overhead, num_tokens = self.overhead, work.num_tokens
        gap_s, launches_s = overhead.gap_s, self.launches_s
        host_s, overlaps = overhead.step_s + overhead.token_s * work.num_samples, overhead.overlaps
        steps_s = self.model.few_s(work, num_steps)
        if not num_tokens:
            return steps_s
        for index, seconds in enumerate(steps_s):
            seconds += gap_s
            if num_tokens > self.captured_tokens:
                seconds = max(seconds, launches_s)
            steps_s[index] = max(seconds, host_s) if overlaps else seconds + host_s
        return steps_s

    def run_s(self, work: StepWork, num_steps: int) -> Seconds:
        """Seconds of each step of a decode run."""
        seconds: Seconds = self.model.run_s(work, num_steps) + self.overhead.gap_s
        if work.num_tokens > self.captured_tokens:
            seconds = np.maximum(seconds, self.launches_s)
        host_s = self.overhead.step_s + self.overhead.token_s * work.num_samples
        return np.maximum(seconds, host_s) if self.overhead.overlaps else seconds + host_s
