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

from actors.core.config import ConfigError
from sim.cost.overhead import MOST_TOKENS, graph_sizes
from sim.cost.roofline import LOGIT_PASSES
from sim.cost.tables.attention import ContextAttention, GenerationAttention, MixedAttention
from sim.cost.tables.interpolate import Lines, has_tables, load, log_interp
from sim.cost.tables.products import AllReduce, ExpertTables, Products, tables_of_link
from sim.cost.work import L2, CostModel, Coverage, Seconds, StepWork
from sim.hardware.formats import ALL_PARTS, DTYPE_BYTES, WeightFormat
from sim.hardware.gpu import Gpu
from sim.hardware.memory import check_parallel
from sim.hardware.shape import Experts, Heads, Latent, Mlp, ModelShape

SMALL_KERNEL_S = 2.5e-6
NUM_SMALL_KERNELS = 4
NUM_QUERY_KEY_NORMS = 2
"""Two norms, rotary embedding and activation, and the norms of queries and keys where a model has
them. Norms take 1.9 to 2.4, rotary embedding 2.2 to 2.7, activations 2.6 to 3.2 microseconds for few
tokens (vLLM 0.19 on an RTX 4090 and an RTX PRO 6000, profiles of the LLMServingSim project, MIT)."""
CACHED_SAVES = 1 - 1 / L2
"""Of the time to read a token from memory, where it is in the cache."""


def unlike_tables(model: ModelShape) -> str | None:
    """Name what a model has that no kernel was measured for; None if there is nothing."""
    if any(isinstance(layer.attention, Latent) for layer, _ in model.layers):
        return "latent attention was not measured"
    if model.has_windows:
        return "attention with a window was not measured"
    if model.only_layer is None:
        return "tables price one kind of layer, and this model has several"
    return None


def file_of(name: str, form: WeightFormat) -> str:
    """The file of a GPU's dense products in that format."""
    return f"{name}-{form.name.replace(' ', '-')}"


def lacks_format(model: ModelShape, name: str) -> str | None:
    """Why the weights of a model cannot be priced by the tables of that GPU, if so."""
    form = model.weights
    if form is None:
        return None
    is_whole = form.parts == ALL_PARTS and not any(layer.unquantised for layer, _ in model.layers)
    if model.has_experts or not is_whole or not has_tables(file_of(name, form)):
        return f"kernels were measured in 16 bits, not in {form.name}"
    return None


def priced_layer(model: ModelShape) -> tuple[Heads, Mlp | Experts]:
    """The attention and the MLP of all layers."""
    layer = model.only_layer
    if layer is None or not isinstance(layer.attention, Heads):
        raise ConfigError(f"{model.name} has no tables: {unlike_tables(model)}")
    return layer.attention, layer.mlp


class TablesCost(CostModel):
    """Seconds of a step of `model` on `tensor_parallel_size` GPUs called `name`; a CostModel.

    `name` is that of the GPU's tables (`has_tables`). The cache is bfloat16, and so are weights
    that are not of a format whose products were measured (`lacks_format`). Batches of up to
    `captured_tokens` are padded to the next captured graph.
    """

    def __init__(
        self,
        model: ModelShape,
        gpu: Gpu,
        name: str,
        *,
        tensor_parallel_size: int = 1,
        captured_tokens: int = MOST_TOKENS,
    ) -> None:
        check_parallel(model, tensor_parallel_size)
        tables, ranks = load(name), tensor_parallel_size
        self.coverage = Coverage()
        self.source = str(tables["source"])
        self._graph_sizes = graph_sizes(captured_tokens)
        self._model, self._ranks = model, ranks
        self._bandwidth = gpu.memory_bandwidth_bytes_per_s * gpu.efficiency.weight_bandwidth
        attention, mlp = priced_layer(model)
        heads = attention.num_heads // ranks
        kv_heads = math.ceil(attention.num_kv_heads / ranks)
        dim, hidden = attention.head_dim, model.hidden_size
        self._num_layers = model.num_layers
        products = Products(tables, gpu, self.coverage)
        linear = products
        if form := model.weights:
            linear = Products(load(file_of(name, form)), gpu, self.coverage, form)
        self._ms: list[float] = linear.ms.astype(np.float64).tolist()
        self._head_ms: list[float] = products.ms.astype(np.float64).tolist()
        layer = linear.curve((heads + 2 * kv_heads) * dim, hidden)
        layer = layer + linear.curve(hidden, heads * dim)
        self._experts: ExpertTables | None = None
        if inner := mlp.shared // ranks:
            layer = layer + linear.curve(2 * inner, hidden) + linear.curve(hidden, inner)
        if mlp.num_experts > 1:
            shape = (hidden, mlp.inner, mlp.per_token, mlp.num_experts)
            self._experts = ExpertTables(tables, shape, ranks, self.coverage)
        self._layer_products: list[float] = layer.tolist()
        self._head: list[float] = products.curve(math.ceil(model.vocab_size / ranks), hidden).tolist()
        context = ContextAttention(tables, heads, kv_heads, dim, self.coverage)
        self._generation = GenerationAttention(tables, heads, kv_heads, dim, gpu, self.coverage)
        self._mixed = MixedAttention(context, self._generation, gpu, heads, kv_heads)
        self._cached_tokens = gpu.l2_bytes / self._generation.row_bytes
        self._reduce: AllReduce | None = None
        if ranks > 1:
            self._reduce = AllReduce(load(tables_of_link(gpu)), gpu, ranks, self.coverage)
        widths = 3 * mlp.inner_per_token // ranks
        self._num_small = NUM_SMALL_KERNELS
        if attention.has_norms:
            self._num_small += NUM_QUERY_KEY_NORMS
            widths += 2 * (heads + kv_heads) * dim
        self._act_bytes = DTYPE_BYTES["bfloat16"] * (widths + 8 * hidden)
        self.splits_contexts = gpu.splits_contexts
        self.has_experts = self._experts is not None
        self.reduces_through_host = ranks > 1 and gpu.link == "pcie"
        self._token_s: dict[int, float] = {}
        self._sample_s: dict[int, float] = {}
        self._curves: dict[int, Lines] = {}

    def step_s(self, work: StepWork) -> float:
        """Return the seconds of one step."""
        seconds = self._rest_s(work)
        if work.chunks:
            layer_s = self._mixed.seconds(work.chunks, work.num_decodes, self._read_tokens(work))
            return seconds + self._num_layers * layer_s
        if work.num_decodes:
            seconds += self._decodes(work.num_decodes).at(self._read_tokens(work) / work.num_decodes)
        return seconds

    def few_s(self, work: StepWork, num_steps: int) -> list[float]:
        """Seconds of each of a few steps of a decode run."""
        if work.num_shared_tokens:
            return super().few_s(work, num_steps)
        places = [context / work.num_decodes for context in work.few_contexts(num_steps)]
        rest_s = self._rest_s(work)
        return [rest_s + seconds for seconds in self._decodes(work.num_decodes).at_few(places)]

    def run_s(self, work: StepWork, num_steps: int) -> Seconds:
        """Seconds of each step of a decode run."""
        contexts = work.decode_contexts(num_steps)
        if work.num_shared_tokens:
            cached = np.minimum(1.0, self._cached_tokens / contexts)
            contexts = contexts - cached * (work.num_shared_tokens * CACHED_SAVES)
        curve = self._decodes(work.num_decodes)
        seconds: Seconds = self._rest_s(work) + curve.at_each(contexts / work.num_decodes)
        return seconds

    def _read_tokens(self, work: StepWork) -> float:
        """Tokens of context that decodes read from memory.

        A block that others read too comes out of the L2 cache as far as that holds what a layer's
        kernel reads: between two readers of a block the kernel reads everything else.
        """
        context = float(work.decode_context_tokens)
        if not work.num_shared_tokens:
            return context
        cached = min(1.0, self._cached_tokens / context)
        return context - cached * (work.num_shared_tokens * CACHED_SAVES)

    def _decodes(self, num_decodes: int) -> "Lines":
        """All layers' attention of the decodes, whose contexts are taken to be equally long."""
        curve = self._curves.get(num_decodes)
        if curve is None:
            xs, ys = self._generation.curve(num_decodes)
            curve = self._curves[num_decodes] = Lines(xs, ys * self._num_layers)
        return curve

    def _rest_s(self, work: StepWork) -> float:
        """Everything but attention."""
        if not work.num_tokens:
            return 0.0
        return self._tokens_s(work.num_tokens) + self._logits_s(work.num_samples)

    def _tokens_s(self, num_tokens: int) -> float:
        """What all layers do to this many tokens, attention aside."""
        seconds = self._token_s.get(num_tokens)
        if seconds is None:
            seconds = self._token_s[num_tokens] = self._layers_s(num_tokens)
        return seconds

    def _layers_s(self, num_tokens: int) -> float:
        """The same, computed."""
        if num_tokens <= self._graph_sizes[-1]:
            num_tokens = self._graph_sizes[bisect.bisect_left(self._graph_sizes, num_tokens)]
        self.coverage.note("gemm m", num_tokens, self._ms[0], self._ms[-1])
        layer_s = log_interp(num_tokens, self._ms, self._layer_products)
        layer_s += self._num_small * SMALL_KERNEL_S
        layer_s += num_tokens * self._act_bytes / self._bandwidth
        if self._experts is not None:
            layer_s += self._experts.seconds(num_tokens)
        if self._reduce is not None:
            layer_s += 2 * self._reduce.seconds(num_tokens * self._model.hidden_size)
        return layer_s * self._num_layers

    def _logits_s(self, num_samples: int) -> float:
        """The output head and the sampler; nothing without samples."""
        if not num_samples:
            return 0.0
        seconds = self._sample_s.get(num_samples)
        if seconds is None:
            logits_bytes = num_samples * self._model.vocab_size * DTYPE_BYTES["float32"]
            seconds = log_interp(num_samples, self._head_ms, self._head)
            seconds += LOGIT_PASSES * logits_bytes / self._bandwidth
            self._sample_s[num_samples] = seconds
        return seconds
