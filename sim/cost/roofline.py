"""A roofline per operator: each takes the longer of its arithmetic and its memory traffic.

Williams, Waterman, Patterson, "Roofline" (CACM 2009), with peaks scaled by the GPU's measured
efficiencies. One tensor-parallel rank is modelled; all ranks do the same at the same time.
Operators of a layer, for T tokens (bytes per weight w, per key or value element v):

    linear       2 T P FLOP, w P bytes, P the layer's weights on this rank; of the experts,
                 E (1 - (1 - k/E)^T) of E are read when each token picks k at random
    prefill      4 heads head_dim (query, key) pairs FLOP; keys and values of context and chunk
    decode       the same with one query per request: proportional to the context tokens read
    elementwise  norms, rotary embedding, activation: bytes of the tensors read and written
    all-reduce   2 per layer, ring: 2 (r-1)/r bytes over the link, plus its latency

and once a step the output head over the sampled positions, and the sampler's two passes over the
float32 logits. Fixed times of small kernels are added per layer and per step.

`tests/sim/roofline_points.py` prints this model's TPOT beside what real servers measured.
"""

import math

import numpy as np

from sim.cost.work import Seconds, StepWork
from sim.hardware.gpu import Gpu
from sim.hardware.memory import check_parallel
from sim.hardware.model import DTYPE_BYTES, ModelShape

LINK_EFFICIENCY = {"nvlink": 0.8, "pcie-p2p": 0.55, "pcie": 0.55 / 2.3}
"""Share of a link's bandwidth that an all-reduce reaches for large messages: on NVLink NCCL's
(nccl-tests), on PCIe that of two RTX PRO 6000 with and without access to each other's memory
(aiconfigurator-core 0.12.0, tables of vLLM 0.24 and 0.19)."""
LOGIT_PASSES = 2
"""Passes of the sampler over float32 logits; 0.31 ms for 256 x 128,256 on an RTX 4090."""


class Roofline:
    """The roofline cost model of `model` on `tensor_parallel_size` GPUs; implements CostModel.

    `dtype` is of weights and activations, `kv_dtype` of the cache; both default to the model's.
    """

    __slots__ = (
        "_act_bytes_per_token",
        "_attention_flops",
        "_bandwidth",
        "_decode_s",
        "_decode_token_s",
        "_flops",
        "_gpu",
        "_head_weights",
        "_kv_bytes",
        "_model",
        "_pair_flops",
        "_ranks",
        "_weight_bytes",
    )

    def __init__(
        self,
        model: ModelShape,
        gpu: Gpu,
        *,
        tensor_parallel_size: int = 1,
        dtype: str | None = None,
        kv_dtype: str | None = None,
    ) -> None:
        check_parallel(model, tensor_parallel_size)
        dtype = dtype or model.dtype
        efficiency, ranks = gpu.efficiency, tensor_parallel_size
        self._model, self._gpu, self._ranks = model, gpu, ranks
        self._weight_bytes = DTYPE_BYTES[dtype]
        self._flops = gpu.peak(dtype) * efficiency.gemm_flops
        # Attention computes in 16 bits (or more) whatever the weights are stored in.
        self._attention_flops = (
            gpu.peak("bfloat16" if dtype == "float8" else dtype) * efficiency.attention_flops
        )
        self._bandwidth = gpu.memory_bandwidth_bytes_per_s * efficiency.weight_bandwidth
        kv_heads = math.ceil(model.num_kv_heads / ranks)
        self._kv_bytes = 2 * kv_heads * model.head_dim * DTYPE_BYTES[kv_dtype or dtype]
        self._pair_flops = 4 * model.num_heads // ranks * model.head_dim
        self._head_weights = model.embedding_params // ranks
        widths = 3 * model.intermediate_size * model.experts_per_token // ranks
        self._act_bytes_per_token = self._weight_bytes * (widths + 8 * model.hidden_size)
        kv_bandwidth = gpu.memory_bandwidth_bytes_per_s * efficiency.kv_bandwidth
        self._decode_token_s = model.num_layers * max(
            self._kv_bytes / kv_bandwidth, self._pair_flops / self._attention_flops
        )
        self._decode_s: dict[int, float] = {}

    def step_s(self, work: StepWork) -> float:
        """Seconds of one step."""
        return self._rest_s(work) + self._decode_token_s * float(work.read_context_tokens)

    def run_s(self, work: StepWork, num_steps: int) -> Seconds:
        """Seconds of each step of a decode run."""
        contexts = work.read_contexts(num_steps)
        seconds: Seconds = np.add(self._rest_s(work), self._decode_token_s * contexts)
        return seconds

    def _rest_s(self, work: StepWork) -> float:
        """Everything but decode attention; kept per batch size for steps that only decode."""
        if work.chunks or work.num_samples != work.num_decodes:
            return self._compute_rest_s(work)
        rest_s = self._decode_s.get(work.num_decodes)
        if rest_s is None:
            rest_s = self._decode_s[work.num_decodes] = self._compute_rest_s(work)
        return rest_s

    def _compute_rest_s(self, work: StepWork) -> float:
        tokens = work.num_tokens
        if not tokens:
            return 0.0
        layer_s = (
            self.linear_s(tokens)
            + self.prefill_attention_s(work)
            + self.elementwise_s(tokens)
            + self.all_reduce_s(tokens)
            + self._gpu.layer_launch_s
        )
        return self._model.num_layers * layer_s + self.logits_s(work.num_samples) + self._gpu.step_launch_s

    def linear_s(self, tokens: int) -> float:
        """One layer's projections and MLP or experts."""
        model, ranks = self._model, self._ranks
        dense = model.attention_params / ranks + model.router_params
        seconds = self._product_s(tokens, dense, dense)
        expert = model.expert_params / ranks
        if model.num_experts == 1:
            return self._product_s(tokens, dense + expert, dense + expert)
        missed = (1 - model.experts_per_token / model.num_experts) ** tokens
        read = model.num_experts * (1 - missed) * expert
        return seconds + self._product_s(tokens, model.experts_per_token * expert, read)

    def _product_s(self, tokens: int, weights_used: float, weights_read: float) -> float:
        compute_s = 2 * tokens * weights_used / self._flops
        return max(compute_s, weights_read * self._weight_bytes / self._bandwidth)

    def prefill_attention_s(self, work: StepWork) -> float:
        """One layer's attention of the chunks."""
        kv_bandwidth = self._gpu.memory_bandwidth_bytes_per_s * self._gpu.efficiency.kv_bandwidth
        seconds = 0.0
        for new, before in work.chunks:
            pairs = new * before + new * (new + 1) // 2
            compute_s = pairs * self._pair_flops / self._attention_flops
            seconds += max(compute_s, (new + before) * self._kv_bytes / kv_bandwidth)
        return seconds

    def elementwise_s(self, tokens: int) -> float:
        """One layer's norms, rotary embedding and activation."""
        return tokens * self._act_bytes_per_token / self._bandwidth

    def all_reduce_s(self, tokens: int) -> float:
        """One layer's two all-reduces; nothing on one rank."""
        ranks = self._ranks
        if ranks == 1:
            return 0.0
        message_bytes = tokens * self._model.hidden_size * self._weight_bytes
        link = self._gpu.interconnect_bytes_per_s * LINK_EFFICIENCY[self._gpu.link]
        latency_s = self._gpu.allreduce_latency_s * (1 + 0.5 * (math.log2(ranks) - 1))
        return 2 * (latency_s + 2 * (ranks - 1) / ranks * message_bytes / link)

    def logits_s(self, num_samples: int) -> float:
        """The output head and the sampler over the sampled positions; nothing without any."""
        if not num_samples:
            return 0.0
        logits_bytes = num_samples * self._model.vocab_size * DTYPE_BYTES["float32"]
        product_s = self._product_s(num_samples, self._head_weights, self._head_weights)
        return product_s + LOGIT_PASSES * logits_bytes / self._bandwidth
