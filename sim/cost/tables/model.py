"""Tables cost model: a step is the sum of its kernels, each as it was measured.

Per layer: the products of its projections and of its MLP, attention of the chunks and of the decodes, two
all-reduces on more than one rank, the experts instead of or besides the MLP if there are any, with the
exchange of tokens between data-parallel ranks; and once a step the output head and the sampler's passes over
the logits. Not in any table: the small kernels of a layer (norms, rotary embedding, activation),
`SMALL_KERNEL_S` each and the bytes that they move. Equal layers are priced once (`layers.py`).
"""

import bisect
import math

import numpy as np

from sundog.actors.config.generation import GREEDY
from sundog.actors.core.engine_version import NEWEST
from sundog.sim.cost.overhead import MOST_TOKENS, graph_sizes
from sundog.sim.cost.sampler import Sampler
from sundog.sim.cost.tables.interpolate import has_tables, load, log_interp
from sundog.sim.cost.tables.layers import LayerTables, TablesOfGpu, check_layers, unlike_layer
from sundog.sim.cost.tables.left_out import left_out_error
from sundog.sim.cost.tables.products import AllReduce, Collective, ExpertExchange, tables_of_link
from sundog.sim.cost.work import CostModel, Coverage, Seconds, StepWork
from sundog.sim.hardware.gpu import Gpu
from sundog.sim.hardware.memory import check_parallel
from sundog.sim.hardware.shape import ModelShape


def unlike_tables(model: ModelShape, name: str) -> str | None:
    """Return the part of a model without a measured kernel on the GPU of that name, if any."""
    found = (unlike_layer(model, layer, name) for layer, _ in model.layers)
    return next((lack for lack in found if lack is not None), None)


class TablesCost(CostModel):
    """Seconds of a step of `model` on `tensor_parallel_size` GPUs called `name`; a CostModel.

    `name` is that of the GPU's tables (`has_tables`). The cache is bfloat16 or float8, whose attention may be
    derived from that of 16 bits (`derives_cache`; not for windows, `lacks_cache`); weights are of 16 bits or
    of formats whose kernels were measured (`unlike_tables`). Batches of up to `captured_tokens` are padded to
    the next captured graph. With `whole_experts` all GPUs of all `data_parallel_size` ranks have whole
    experts, and tokens are exchanged between those ranks.
    """

    def __init__(
        self,
        model: ModelShape,
        gpu: Gpu,
        name: str,
        *,
        tensor_parallel_size: int = 1,
        captured_tokens: int = MOST_TOKENS,
        whole_experts: bool = False,
        data_parallel_size: int = 1,
        kv_dtype: str = "bfloat16",
        sampler: Sampler | None = None,
        version: str = NEWEST,
    ) -> None:
        check_parallel(model, tensor_parallel_size)
        check_layers(model, name)
        ranks = tensor_parallel_size
        self.coverage = Coverage()
        self.splits_contexts = gpu.splits_contexts
        self.has_experts = model.has_experts
        self.reduces_through_host = ranks > 1 and gpu.link == "pcie"
        self._model, self.num_ranks = model, ranks * data_parallel_size
        self._gather: Collective | None = None
        self._sampler = sampler or Sampler(GREEDY, NEWEST, model.vocab_size, gpu)
        self._graph_sizes, self._captured_tokens = graph_sizes(captured_tokens), captured_tokens
        shared = TablesOfGpu(
            name, gpu, ranks=ranks, coverage=self.coverage, kv_dtype=kv_dtype, version=version
        )
        self.source = str(shared.tables["source"])
        link = tables_of_link(gpu)
        if ranks > 1:
            shared.reduce = AllReduce(load(link), gpu, ranks, self.coverage)
        if ranks > 1 and has_tables(f"{link}-experts"):
            self._gather = Collective(
                load(f"{link}-experts"), "gather", gpu=gpu, ranks=ranks, coverage=self.coverage
            )
        if data_parallel_size > 1:
            tables = load(f"{link}-experts")
            shared.exchange = ExpertExchange(tables, gpu, data_parallel_size, self.coverage)
        self._groups = data_parallel_size
        whole = ranks * data_parallel_size if whole_experts else 1
        self.layers = [
            LayerTables(model, layer, count=count, shared=shared, whole=whole)
            for layer, count in model.layers
        ]
        self.derives_cache = shared.derives_cache
        plain = shared.plain
        self._head_ms: list[float] = plain.ms.astype(np.float64).tolist()
        self._head: list[float] = plain.curve(math.ceil(model.vocab_size / ranks), model.hidden_size).tolist()
        self._token_s: dict[int, float] = {}
        """By the number of tokens, and in the bits above 32 that of routed ones: a pair is slower to find."""
        self._sample_s: dict[int, float] = {}

    @property
    def families(self) -> frozenset[str]:
        """Kernels besides dense products in 16 bits and attention by heads, by their names in
        `left_out.py`.
        """
        found = {name for layers in self.layers for name in layers.families}
        forms = {
            self._model.format_of(layer, part) for layer, _ in self._model.layers for part in layer.parts
        }
        if any(form is not None and form.name == "block fp8" for form in forms):
            found.add("block products")
        return frozenset(found)

    @property
    def left_out_error(self) -> float:
        """Largest error of these kernels when their measurements were left out."""
        return left_out_error(self.families)

    def step_s(self, work: StepWork) -> float:
        """Return the seconds of one step."""
        seconds = self._rest_s(work)
        if work.chunks:
            for layers in self.layers:
                seconds += layers.mixed_s(work)
            return seconds
        if num_decodes := work.num_decodes:
            for layers in self.layers:
                seconds += layers.decodes(num_decodes).at(layers.read_tokens(work) / num_decodes)
        return seconds

    def few_s(self, work: StepWork, num_steps: int) -> list[float]:
        """Return the seconds of each of a few steps of a decode run."""
        if work.num_shared_tokens:
            return super().few_s(work, num_steps)
        context, each = float(work.decode_context_tokens), float(work.num_decodes)
        rest_s, steps_s = self._rest_s(work), list[float]()
        for layers in self.layers:
            curve = layers.decodes(work.num_decodes)
            if not steps_s:  # most models have one kind of layer
                steps_s = curve.at_few(context, each, count=num_steps, over=each, plus=rest_s)
            else:
                layers_s = curve.at_few(context, each, count=num_steps, over=each)
                for index, seconds in enumerate(layers_s):
                    steps_s[index] += seconds
        return steps_s

    def run_s(self, work: StepWork, num_steps: int) -> Seconds:
        """Return the seconds of each step of a decode run."""
        contexts, rest_s = work.decode_contexts(num_steps), self._rest_s(work)
        seconds: Seconds | None = None
        for layers in self.layers:
            read = layers.read_each(work, contexts)
            layers_s = layers.decodes(work.num_decodes).at_each(read / work.num_decodes)
            seconds = layers_s + rest_s if seconds is None else seconds + layers_s
        assert seconds is not None, "a model has layers"
        return seconds

    def _rest_s(self, work: StepWork) -> float:
        if not work.num_tokens:
            return 0.0
        return self._tokens_s(work.num_tokens, work.num_routed_tokens) + self._logits_s(work.num_samples)

    def _tokens_s(self, num_tokens: int, num_routed: int) -> float:
        """Return the seconds of all layers for these tokens, without attention; `num_routed` 0 means the same
        number.

        If a graph is replayed, all data-parallel ranks are padded to the largest batch, even idle ones, and
        experts compute all of it. The rank with that batch determines the time.
        """
        key = (num_routed << 32) + num_tokens
        seconds = self._token_s.get(key)
        if seconds is None:
            padded, routed = num_tokens, num_routed
            if num_tokens <= self._captured_tokens:
                padded = self._graph_sizes[bisect.bisect_left(self._graph_sizes, num_tokens)]
                routed = max(num_routed, padded * self._groups)
            routed = max(routed, padded)
            seconds = sum([layers.tokens_s(padded, routed) for layers in self.layers], 0.0)
            self._token_s[key] = seconds
        return seconds

    def _logits_s(self, num_samples: int) -> float:
        if not num_samples:
            return 0.0
        seconds = self._sample_s.get(num_samples)
        if seconds is None:
            seconds = log_interp(num_samples, self._head_ms, self._head)
            seconds += self._sampler.seconds(num_samples)
            if self._gather is not None:
                seconds += self._gather.seconds(num_samples * self._model.vocab_size)
            self._sample_s[num_samples] = seconds
        return seconds
