"""Host time of a step, kept apart from the GPU's so that it can be switched off.

Batches that vLLM replays from captured graphs are launched in one go; the others kernel by kernel. The rule
for graphs and padding is vLLM's own (`_set_cudagraph_sizes`): graphs up to twice the tokens of a decode step
of all running slots, but at most `MOST_TOKENS`, and never beyond a step's budget.
"""

from typing import Final

import numpy as np

from sundog.actors.config.front_costs import NO_FRONT, FrontCosts
from sundog.actors.core.engine_version import parse_version
from sundog.actors.core.records import dataclass
from sundog.sim.cost.work import CostModel, Seconds, StepWork
from sundog.sim.hardware.gpu import Gpu

MOST_TOKENS: Final = 512
MOST_TOKENS_BLACKWELL: Final = 1024
"""Most tokens on data-centre Blackwell (compute capability 10), merged in July 2026."""
BLACKWELL_SINCE: Final = (0, 32)
"""First version of vLLM with that limit on Blackwell."""


def graph_sizes(most_tokens: int) -> list[int]:
    """Return the numbers of tokens for which graphs are captured: a batch is padded to the next."""
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, most_tokens + 1, 16)]
    return [size for size in sizes if size <= most_tokens]


def largest_graph(
    gpu: Gpu, version: str, max_num_seqs: int, max_num_batched_tokens: int, num_drafts: int = 0
) -> int:
    """Return the tokens of the largest replayed batch; larger ones are launched kernel by kernel."""
    is_blackwell = 10 <= gpu.compute_capability < 11 and parse_version(version) >= BLACKWELL_SINCE
    most = MOST_TOKENS_BLACKWELL if is_blackwell else MOST_TOKENS
    decodes = max_num_seqs * (1 + num_drafts)
    if max_num_batched_tokens <= min(2 * decodes, most):
        return max_num_batched_tokens
    return graph_sizes(min(2 * decodes, most))[-1]


@dataclass(frozen=True, slots=True)
class HostOverhead:
    """Host seconds of every step, token and layer without a graph; and its front end.

    `gap_s` lies between the layers of two steps in any case: sampling, the copies of a batch's indices,
    launching a graph. `step_s`, `token_s` and `chunk_s` are scheduling, processing the token of each request
    that samples, and chunks of prompts; with `overlaps` the host does that while the GPU works, and a step
    takes the longer of the two. If the batch is too large for a captured graph, launching a layer's kernels
    takes the host `eager_layer_s` (`eager_rank_layer_s` with all-reduces between ranks), with experts
    `eager_experts_s` more: no such step is shorter. `front` is spent by an API process on each request before
    it reaches the engine (HTTP, chat template, tokenizing): the client observes it and the GPU does not.
    """

    gap_s: float = 0.0
    step_s: float = 0.0
    token_s: float = 0.0
    chunk_s: float = 0.0
    eager_layer_s: float = 0.0
    eager_rank_layer_s: float = 0.0
    eager_experts_s: float = 0.0
    front: FrontCosts = NO_FRONT
    overlaps: bool = False

    def launches_s(
        self, num_layers: int, ranks: int, num_with_experts: int = 0, num_with_norms: int = 0
    ) -> float:
        """Return the least seconds of a step without a graph, with experts in some of its layers.

        In `num_with_norms` of them, norms of queries and keys are separate kernels.
        """
        layer_s = self.eager_layer_s if ranks == 1 else self.eager_rank_layer_s
        norms_s = NUM_QUERY_KEY_NORMS / LAYER_KERNELS * self.eager_layer_s * num_with_norms
        return num_layers * layer_s + num_with_experts * self.eager_experts_s + norms_s


NO_OVERHEAD = HostOverhead()
EAGER_LAYER_S, EAGER_RANK_LAYER_S = 0.0005, 0.00083
LAYER_KERNELS, MORE_KERNELS = 10, 5
"""Kernels of a Llama's layer on one rank: two norms, rotary embedding, a write to the cache, attention,
four products, the activation. Experts have eight instead of two products and the activation: the
router's product, the choice, two that sort tokens by expert, two products, the activation, the sum
(vLLM's `fused_experts`).
"""
NUM_QUERY_KEY_NORMS = 2
"""Kernels for the norms of queries and keys if nothing is compiled (`--enforce-eager`)."""
EAGER_EXPERTS_S = EAGER_LAYER_S / LAYER_KERNELS * MORE_KERNELS
FRONT = FrontCosts(request=0.007, stages=3)
"""Costs of an API process (`host_overhead` has their origin)."""
FRONT_WITHOUT_TEMPLATE = FrontCosts(request=0.0015, stages=3)
"""Costs without a chat template: the middle of the 1 to 2 ms that servers of gpt-oss took."""
ASYNC_OVERHEAD = HostOverhead(
    gap_s=0.00043,
    step_s=0.0008,
    token_s=12e-6,
    eager_layer_s=EAGER_LAYER_S,
    eager_rank_layer_s=EAGER_RANK_LAYER_S,
    eager_experts_s=EAGER_EXPERTS_S,
    front=FRONT,
    overlaps=True,
)
SYNC_STEP_S, SYNC_TOKEN_S = 0.00034, 20e-6
"""Additional seconds of a synchronous host between two steps, and for each request that samples: results
are processed, answers forwarded, and the next batch's inputs made while the GPU waits.
"""
SYNC_OVERHEAD = HostOverhead(
    gap_s=0.00043,
    step_s=SYNC_STEP_S,
    token_s=12e-6 + SYNC_TOKEN_S,
    eager_layer_s=EAGER_LAYER_S,
    eager_rank_layer_s=EAGER_RANK_LAYER_S,
    eager_experts_s=EAGER_EXPERTS_S,
    front=FRONT,
)


def host_overhead(async_scheduling: bool) -> HostOverhead:
    """Return the host's share fitted to one run: vLLM 0.23, Qwen3-14B on an H100, 2 requests a second.

    Its steps of 1, 2, 4, 8, 9 and 10 decodes take 0.37 to 0.50 ms longer than their kernels; 7 ms a request
    remain for the front end. The 12 microseconds a token are not fitted: vLLM 0.32's scheduler took 3.1 ms a
    step for 256 requests on a 2-core machine. The run was asynchronous. The additional time of a synchronous
    host between two steps is the residual of a server of Qwen3-8B on an H100 before vLLM 0.14.

    A request passes an API process in three stages, between which the handler waits and others take their
    turns: its body is read, the template applied and the prompt tokenised, parameters made and the request
    sent. Bursts were not fitted to: median TTFT of 8 cached prompts (Qwen2.5-7B on one and on two A100, vLLM
    0.19) 75 and 66 ms, measured 72 and 54; of 32, 226 and 218 ms, measured 229 and 183.

    Launching layers without a graph is fitted to the p99 of two servers whose first hundred prompts miss the
    prefix cache, while the others hit it: Llama-2-70b on four H100 takes 72 ms for such a prefill of 593
    tokens, whose kernels take 43, and Llama-2-7b on one 16 ms instead of 12. Layers with experts take longer
    in proportion to their number of kernels.
    """
    return ASYNC_OVERHEAD if async_scheduling else SYNC_OVERHEAD


@dataclass(frozen=True, slots=True)
class WithOverhead(CostModel):
    """`model` plus the host's share.

    `launches_s` is the least time of a step without a graph (`HostOverhead.launches_s`); steps of up to
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
        """Return the seconds of each of a few steps of a decode run."""
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
        """Return the seconds of each step of a decode run."""
        seconds: Seconds = self.model.run_s(work, num_steps) + self.overhead.gap_s
        if work.num_tokens > self.captured_tokens:
            seconds = np.maximum(seconds, self.launches_s)
        host_s = self.overhead.step_s + self.overhead.token_s * work.num_samples
        return np.maximum(seconds, host_s) if self.overhead.overlaps else seconds + host_s
