"""The tables cost model: a step is the sum of its kernels, each as it was measured.

Per layer: the query-key-value, output, gate-up and down products, attention of the chunks and of
the decodes, two all-reduces on more than one rank, the experts instead of the MLP if there are any;
and once a step the output head and the sampler's passes over the logits. What no table has: the
small kernels of a layer (two norms, rotary embedding, activation), `SMALL_KERNEL_S` each and the
bytes that they move.
"""

import bisect
import math

import numpy as np

from sim.cost.overhead import WithOverhead
from sim.cost.roofline import LOGIT_PASSES
from sim.cost.tables.operators import (
    AllReduce,
    ContextAttention,
    Coverage,
    Experts,
    Floats,
    GenerationAttention,
    Products,
    load,
    log_interp,
)
from sim.cost.work import CostModel, Seconds, StepWork
from sim.hardware.gpu import Gpu
from sim.hardware.memory import check_parallel
from sim.hardware.model import DTYPE_BYTES, ModelShape

SMALL_KERNEL_S = 2.5e-6
NUM_SMALL_KERNELS = 4
"""Norms take 2.5 and activations 3.2 microseconds for few tokens (vLLM 0.19 on an RTX 4090,
measured kernels of the LLMServingSim project, MIT)."""
CAPTURED = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]
"""Batch sizes for which vLLM captures graphs: a batch that only decodes is padded to the next."""


class Lines:
    """Straight lines between points, the last of them without end; for one place or for many.

    Both ways take the same steps in float64, each rounded, and so give the same bits.
    """

    __slots__ = ("_arrays", "_slopes", "_xs", "_ys")

    def __init__(self, xs: Floats, ys: Floats) -> None:
        slopes = np.diff(ys) / np.diff(xs)
        self._arrays = xs[:-1], ys[:-1], slopes
        self._xs: list[float] = xs[:-1].tolist()
        self._ys: list[float] = ys[:-1].tolist()
        self._slopes: list[float] = slopes.tolist()

    def at(self, x: float) -> float:
        i = self._segment(x)
        return (x - self._xs[i]) * self._slopes[i] + self._ys[i]

    def at_each(self, places: Floats) -> Floats:
        """`at` of every place; they must not fall."""
        first, last = self._segment(float(places[0])), self._segment(float(places[-1]))
        values: Floats
        if first == last:
            values = (places - self._xs[first]) * self._slopes[first] + self._ys[first]
        else:
            xs, ys, slopes = self._arrays
            i = np.maximum(np.searchsorted(xs, places, side="right") - 1, 0)
            values = (places - xs[i]) * slopes[i] + ys[i]
        return values

    def _segment(self, x: float) -> int:
        return max(bisect.bisect_right(self._xs, x) - 1, 0)


class TablesCost:
    """Seconds of a step of `model` on `tensor_parallel_size` GPUs called `name`; a CostModel.

    `name` is that of the GPU's tables (`has_tables`). Weights and cache are bfloat16.
    """

    def __init__(self, model: ModelShape, gpu: Gpu, name: str, *, tensor_parallel_size: int = 1) -> None:
        check_parallel(model, tensor_parallel_size)
        tables, ranks = load(name), tensor_parallel_size
        self.coverage = Coverage()
        self.source = str(tables["source"])
        self._model, self._ranks = model, ranks
        self._bandwidth = gpu.memory_bandwidth_bytes_per_s * gpu.efficiency.weight_bandwidth
        heads = model.num_heads // ranks
        kv_heads = math.ceil(model.num_kv_heads / ranks)
        dim, hidden = model.head_dim, model.hidden_size
        products = Products(tables, self.coverage)
        self._ms: list[float] = products.ms.astype(np.float64).tolist()
        layer = products.curve((heads + 2 * kv_heads) * dim, hidden)
        layer = layer + products.curve(hidden, heads * dim)
        self._experts: Experts | None = None
        if model.num_experts == 1:
            inner = model.intermediate_size // ranks
            layer = layer + products.curve(2 * inner, hidden) + products.curve(hidden, inner)
        else:
            shape = (hidden, model.intermediate_size, model.experts_per_token, model.num_experts)
            self._experts = Experts(tables, shape, ranks, self.coverage)
        # More tokens never take less: measured kernels sometimes do, by a few percent.
        self._layer_products: list[float] = np.maximum.accumulate(layer).tolist()
        head = products.curve(math.ceil(model.vocab_size / ranks), hidden)
        self._head: list[float] = np.maximum.accumulate(head).tolist()
        self._context = ContextAttention(tables, heads, kv_heads, dim, self.coverage)
        self._generation = GenerationAttention(tables, heads, kv_heads, dim, self.coverage)
        self._reduce = AllReduce(tables, ranks, self.coverage) if ranks > 1 else None
        widths = 3 * model.intermediate_size * model.experts_per_token // ranks
        self._act_bytes = DTYPE_BYTES["bfloat16"] * (widths + 8 * hidden)
        self._token_s: dict[int, float] = {}
        self._sample_s: dict[int, float] = {}
        self._curves: dict[int, Lines] = {}

    def step_s(self, work: StepWork) -> float:
        """Seconds of one step."""
        seconds = self._rest_s(work)
        if work.num_decodes:
            curve = self._decodes(work.num_decodes)
            seconds += curve.at(float(work.read_context_tokens) / work.num_decodes)
        return seconds

    def run_s(self, work: StepWork, num_steps: int) -> Seconds:
        """Seconds of each step of a decode run."""
        contexts = work.read_contexts(num_steps) / work.num_decodes
        seconds: Seconds = self._rest_s(work) + self._decodes(work.num_decodes).at_each(contexts)
        return seconds

    def _decodes(self, num_decodes: int) -> "Lines":
        """All layers' attention of the decodes, whose contexts are taken to be equally long."""
        curve = self._curves.get(num_decodes)
        if curve is None:
            xs, ys = self._generation.curve(num_decodes)
            curve = self._curves[num_decodes] = Lines(xs, ys * self._model.num_layers)
        return curve

    def _rest_s(self, work: StepWork) -> float:
        """Everything but the decodes' attention."""
        num_tokens = work.num_tokens
        if not num_tokens:
            return 0.0
        if not work.chunks and num_tokens <= CAPTURED[-1]:
            num_tokens = CAPTURED[bisect.bisect_left(CAPTURED, num_tokens)]
        seconds = self._tokens_s(num_tokens) + self._logits_s(work.num_samples)
        for new, before in work.chunks:
            seconds += self._model.num_layers * self._context.seconds(new, before)
        return seconds

    def _tokens_s(self, num_tokens: int) -> float:
        """What all layers do to so many tokens, attention aside."""
        seconds = self._token_s.get(num_tokens)
        if seconds is None:
            self.coverage.note("gemm m", num_tokens, self._ms[0], self._ms[-1])
            layer_s = log_interp(num_tokens, self._ms, self._layer_products)
            layer_s += NUM_SMALL_KERNELS * SMALL_KERNEL_S
            layer_s += num_tokens * self._act_bytes / self._bandwidth
            if self._experts is not None:
                layer_s += self._experts.seconds(num_tokens)
            if self._reduce is not None:
                layer_s += 2 * self._reduce.seconds(num_tokens * self._model.hidden_size)
            seconds = self._token_s[num_tokens] = layer_s * self._model.num_layers
        return seconds

    def _logits_s(self, num_samples: int) -> float:
        """The output head and the sampler; nothing without samples."""
        if not num_samples:
            return 0.0
        seconds = self._sample_s.get(num_samples)
        if seconds is None:
            logits_bytes = num_samples * self._model.vocab_size * DTYPE_BYTES["float32"]
            seconds = log_interp(num_samples, self._ms, self._head)
            seconds += LOGIT_PASSES * logits_bytes / self._bandwidth
            self._sample_s[num_samples] = seconds
        return seconds


FAR = 4.0
"""A factor outside the measured sizes from which on people should know."""


def outside_measured(cost: CostModel) -> dict[str, float]:
    """By operator, how far outside its measured sizes it was asked, where that is far."""
    model = cost.model if isinstance(cost, WithOverhead) else cost
    if not isinstance(model, TablesCost):
        return {}
    return {name: factor for name, factor in model.coverage.factors.items() if factor > FAR}
