"""Target of a simulation: a model on GPUs, with the limits that vLLM would choose for them."""

from collections.abc import Callable
from dataclasses import replace

from sundog.actors.config.front_costs import FrontCosts
from sundog.actors.config.generation import GREEDY, Drawing
from sundog.actors.core.config import ConfigError, HostMemory, SchedulerConfig
from sundog.actors.core.engine_version import NEWEST
from sundog.actors.core.records import dataclass
from sundog.actors.messages import Capacity
from sundog.sim.cost.composed import Pipeline, WithDrafts
from sundog.sim.cost.cost_file import read_cost
from sundog.sim.cost.overhead import (
    FRONT,
    FRONT_WITHOUT_TEMPLATE,
    MOST_TOKENS,
    NO_OVERHEAD,
    HostOverhead,
    WithOverhead,
    largest_graph,
)
from sundog.sim.cost.roofline import LINK_EFFICIENCY, Roofline
from sundog.sim.cost.sampler import Sampler
from sundog.sim.cost.work import CostModel
from sundog.sim.hardware.attention import Heads
from sundog.sim.hardware.formats import DTYPE_BYTES
from sundog.sim.hardware.gpu import MACHINE_GPUS, Gpu
from sundog.sim.hardware.memory import block_of_states, plan_memory, stages_of
from sundog.sim.hardware.shape import Layer, ModelShape

COST_MODELS = ("auto", "tables", "roofline")
LARGE_GPU_BYTES = 70 * 2**30
HUGE_GPU_BYTES = 160 * 2**30
MOST_HOST_BLOCKS = 2**24
"""Most blocks in host memory: this many take 3 GB to simulate."""


@dataclass(frozen=True, slots=True)
class Target:
    """Hardware of one replica; `dtype` None is the model's own.

    `cost_model` is `tables` (measured kernels, bfloat16), `roofline`, `auto` (tables if there are any, else
    the roofline), or the file of a calibrated model, which includes the host's share. A `draft` model makes
    `num_drafts` drafts after each step, greedily; the model samples by `drawing`. The layers are split over
    `pipeline_parallel_size` stages of `tensor_parallel_size` GPUs each.
    """

    model: ModelShape
    gpu: Gpu
    tensor_parallel_size: int = 1
    dtype: str | None = None
    gpu_memory_utilization: float = 0.92
    cost_model: str = "auto"
    kv_dtype: str | None = None
    expert_parallel: bool = False
    draft: ModelShape | None = None
    num_drafts: int = 0
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    """Number of ranks that share experts."""
    captured_tokens: int = MOST_TOKENS
    """Tokens of the largest batch with a captured graph."""
    enforce_eager: bool = False
    """Whether every step is launched kernel by kernel, with nothing compiled and no graph captured."""
    drawing: Drawing = GREEDY
    version: str = NEWEST

    def __post_init__(self) -> None:
        """Choose vLLM's dtype for weights in 32 bits if `dtype` is the model's own."""
        if self.dtype is None and self.model.dtype == "float32":
            object.__setattr__(self, "dtype", "bfloat16" if self.gpu.compute_capability >= 8 else "float16")

    @property
    def remarks(self) -> tuple[str, ...]:
        """Descriptions of step costs that are not from measured kernels of this very model."""
        model, found = self.model, list(self.model.remarks)
        if model.dtype == "float32" and self.dtype in ("bfloat16", "float16"):
            found.append(f"weights in float32 are cast to {self.dtype}, as in vLLM; --dtype changes that")
        lack = None if self.cost_model == "roofline" else self._lacks_tables()
        by_roofline = self.cost_model == "roofline" or lack is not None
        if self.cost_model == "auto" and lack:
            found.append(f"step times come from a roofline: {lack}")
        if not by_roofline and self.kv_dtype == "float8" and self._derives_cache:
            found.append(
                f"attention on an 8-bit cache was not measured on {self.gpu.name}: it is priced as 16-bit"
                " kernels that read half as many tokens"
            )
        form, peaks = model.weights, self.gpu.peak_flops_per_s
        if form is not None and (form.units is None or form.units not in peaks):
            lacks = f"{self.gpu.name} has no {form.units} units: " if form.units else ""
            found.append(f"{lacks}{form.name} weights are read as they are stored and multiplied in 16 bits")
        num_ranks = self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size
        if num_ranks > MACHINE_GPUS:
            found.append(f"{num_ranks} ranks are assumed to share one machine's link")
        if self.pipeline_parallel_size > 1:
            found.append("transfers between stages are computed from the link's bandwidth, not measured")
        if self.data_parallel_size > 1:
            unmeasured = "; transfers to experts are computed from the link's bandwidth, not measured"
            found.append(
                "data-parallel ranks step together, each step as long as its slowest "
                "rank" + unmeasured * by_roofline
            )
        if self.expert_parallel and by_roofline:
            found.append("experts' tokens are assumed to be spread evenly over ranks")
        return tuple(f"{model.name}: {text}" for text in found)

    @property
    def default_limits(self) -> tuple[int, int]:
        """vLLM's (max_num_batched_tokens, max_num_seqs) for a server on this GPU."""
        if self.gpu.memory_bytes >= HUGE_GPU_BYTES:
            return 16384, 1024
        if self.gpu.memory_bytes >= LARGE_GPU_BYTES and "a100" not in self.gpu.name.lower():
            return 8192, 1024
        return 2048, 256

    def with_limits(self, version: str, max_num_seqs: int, max_num_batched_tokens: int) -> "Target":
        """Return the target with the graphs that this version of vLLM captures for these limits."""
        captured = 0
        if not self.enforce_eager:
            captured = largest_graph(self.gpu, version, max_num_seqs, max_num_batched_tokens, self.num_drafts)
        return replace(self, captured_tokens=captured, version=version)

    def front(self, overhead: HostOverhead) -> FrontCosts:
        """Return the costs of the API processes of a server with this host; they depend on how it reads
        conversations.
        """
        without = self.model.writes_chat_itself and overhead.front is FRONT
        return FRONT_WITHOUT_TEMPLATE if without else overhead.front

    def cost(self, overhead: HostOverhead) -> CostModel:
        """Return the seconds of a step on the GPUs, and the host's share.

        Raises ConfigError if missing tables are requested.
        """
        self._check_experts()
        if self.cost_model.endswith(".toml"):
            for name, what in (("pipeline", "stages"), ("data", "what is a rank's own and what all share")):
                if (size := getattr(self, f"{name}_parallel_size")) > 1:
                    raise ConfigError(
                        f"{name}_parallel_size is {size}: the cost in {self.cost_model} is of whole steps,"
                        f" which cannot be split into {what}; leave it at 1, or use --cost auto"
                    )
            return self._drafting(read_cost(self.cost_model))
        if self.cost_model not in COST_MODELS:
            known = ", ".join(COST_MODELS)
            raise ConfigError(f"cost is {self.cost_model!r}: known are {known}, or a .toml file")
        lack = self._lacks_tables()
        if self.cost_model == "tables" and lack is not None:
            raise ConfigError(f"cost is tables, but {lack}: use --cost roofline")
        kernels = self._roofline if self.cost_model == "roofline" or lack is not None else self._tables
        if self.pipeline_parallel_size == 1:
            return self._with_overhead(self._drafting(kernels(self.model)), overhead, self.model)
        return self._pipeline(kernels, overhead)

    def _with_overhead(self, kernels: CostModel, overhead: HostOverhead, model: ModelShape) -> CostModel:
        num_with_experts = sum(count for layer, count in model.layers if layer.mlp.num_experts > 1)
        num_with_norms = sum(count for layer, count in model.layers if _has_norms(layer)) * self.enforce_eager
        launches_s = overhead.launches_s(
            model.num_layers, self.tensor_parallel_size, num_with_experts, num_with_norms
        )
        return WithOverhead(kernels, overhead, launches_s, self.captured_tokens)

    def _tables(self, model: ModelShape) -> CostModel:
        from sundog.sim.cost.tables.model import TablesCost

        return TablesCost(
            model,
            self.gpu,
            self.gpu.key,
            tensor_parallel_size=self.tensor_parallel_size,
            captured_tokens=self.captured_tokens,
            whole_experts=self.expert_parallel,
            data_parallel_size=self.data_parallel_size,
            kv_dtype=self.kv_dtype or "bfloat16",
            sampler=self._sampler,
            version=self.version,
        )

    def _roofline(self, model: ModelShape) -> CostModel:
        size = self.tensor_parallel_size
        return Roofline(
            model,
            self.gpu,
            tensor_parallel_size=size,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            data_parallel_size=self.data_parallel_size,
            sampler=self._sampler,
        )

    @property
    def _sampler(self) -> Sampler:
        return Sampler(self.drawing, self.version, self.model.vocab_size, self.gpu)

    def _pipeline(self, kernels: Callable[[ModelShape], CostModel], overhead: HostOverhead) -> CostModel:
        """Return the cost of a pipeline: each stage has the worker's share of the host, one scheduler
        plans.
        """
        worker = replace(overhead, step_s=0.0, token_s=0.0, chunk_s=0.0, overlaps=False)
        stages = tuple(
            self._with_overhead(kernels(stage), worker, stage)
            for stage in stages_of(self.model, self.pipeline_parallel_size)
        )
        # A hidden state and its residual. Of several ranks each sends a part, which the next stage gathers.
        sent_bytes = 2 * self.model.hidden_size * DTYPE_BYTES[self.dtype or self.model.dtype]
        rate = self.gpu.interconnect_bytes_per_s * LINK_EFFICIENCY[self.gpu.link]
        return Pipeline(stages, overhead, self.gpu.allreduce_latency_s, sent_bytes / rate)

    def _drafting(self, model: CostModel) -> CostModel:
        if self.draft is None:
            return model
        kind = "auto" if self.cost_model.endswith(".toml") else self.cost_model
        draft = replace(
            self,
            model=self.draft,
            draft=None,
            cost_model=kind,
            expert_parallel=False,
            data_parallel_size=1,
            drawing=GREEDY,
        )
        return WithDrafts(model, draft.cost(NO_OVERHEAD), self.num_drafts)

    def _check_experts(self) -> None:
        if not self.expert_parallel:
            return
        if not self.model.has_experts:
            raise ConfigError(f"enable_expert_parallel: {self.model.name} has no experts: leave it out")
        for layer, _ in self.model.layers:
            num_ranks = self.tensor_parallel_size * self.data_parallel_size
            if layer.mlp.num_experts > 1 and layer.mlp.num_experts % num_ranks:
                either = " or --data-parallel-size" if self.data_parallel_size > 1 else ""
                raise ConfigError(
                    f"enable_expert_parallel: the {layer.mlp.num_experts} experts of {self.model.name} cannot"
                    f" be split evenly over {num_ranks} ranks: change --tensor-parallel-size{either}"
                )

    @property
    def _derives_cache(self) -> bool:
        from sundog.sim.cost.tables.interpolate import has_tables
        from sundog.sim.cost.tables.layers import cache_file

        by_heads = any(isinstance(layer.attention, Heads) for layer, _ in self.model.layers)
        return by_heads and not has_tables(cache_file(self.gpu.key))

    def _lacks_tables(self) -> str | None:
        from sundog.sim.cost.tables.interpolate import has_tables
        from sundog.sim.cost.tables.layers import lacks_cache
        from sundog.sim.cost.tables.model import unlike_tables
        from sundog.sim.cost.tables.products import tables_of_link

        if not has_tables(self.gpu.key):
            return f"no kernels were measured on {self.gpu.name}"
        if lack := unlike_tables(self.model, self.gpu.key):
            return lack
        if self.kv_dtype == "float8" and lacks_cache(self.model, self.gpu.key):
            return "kernels were measured with a cache of 16 bits, not of float8"
        whole = self.expert_parallel and self.tensor_parallel_size * self.data_parallel_size > 1
        if whole and not has_tables(f"{self.gpu.key}-experts"):
            return f"on {self.gpu.name} experts were measured split over ranks, not given to them whole"
        if self.data_parallel_size > 1 and not has_tables(f"{tables_of_link(self.gpu)}-experts"):
            return "the exchange of tokens between ranks was not measured on this link"
        if (self.dtype or self.model.dtype) not in ("bfloat16", "float16"):
            return f"kernels were measured in 16 bits, not in {self.dtype or self.model.dtype}"
        return None

    def capacity(
        self,
        block_size: int,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        num_gpu_blocks: int | None = None,
        *,
        caches: bool = True,
    ) -> Capacity:
        """Return the KV blocks that fit beside the weights of every stage, or `num_gpu_blocks` if given.

        If the engine `caches` prefixes, a running request has two states of linear attention, the previous
        one to be kept; and one more for each draft.

        Raises ConfigError with the needed memory if not even one block fits.
        """
        plans = [
            plan_memory(
                stage,
                self.gpu,
                block_size=block_size,
                max_num_batched_tokens=max_num_batched_tokens,
                max_num_seqs=max_num_seqs,
                gpu_memory_utilization=self.gpu_memory_utilization,
                tensor_parallel_size=self.tensor_parallel_size,
                dtype=self.dtype,
                kv_dtype=self.kv_dtype,
                draft=self.draft,
                data_parallel_size=self.data_parallel_size,
                states_per_request=1 + caches + self.num_drafts,
            )
            for stage in stages_of(self.model, self.pipeline_parallel_size)
        ]
        return Capacity(num_gpu_blocks or min(plan.num_blocks for plan in plans), block_size)

    @property
    def has_states(self) -> bool:
        """Whether the model keeps a state of each request, by layers of linear attention."""
        return self.model.request_bytes(1, self.model.dtype) > 0

    def with_states(self, limits: SchedulerConfig) -> SchedulerConfig:
        """Return the limits with blocks that hold a state, and hits that end where a state was kept.

        Unchanged without states of linear attention.
        """
        if not self.has_states:
            return limits
        size = block_of_states(
            self.model,
            block_size=limits.block_size,
            tensor_parallel_size=self.tensor_parallel_size,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            num_drafts=self.num_drafts,
        )
        return replace(limits, block_size=size, keeps_states=limits.enable_prefix_caching)

    @property
    def kv_token_bytes(self) -> int:
        """Bytes of a token's keys and values that a rank would keep if it had all layers."""
        return self.model.kv_bytes_per_token(self.kv_dtype or self.dtype, self.tensor_parallel_size)

    def host_memory(self, size_gib: float, gb_per_s: float | None, block_size: int) -> HostMemory | None:
        """Return the host memory for KV blocks, of all ranks together; they copy their parts at once.

        Raises ConfigError for more blocks than can be simulated.
        """
        if not size_gib:
            return None
        block_bytes = self.kv_token_bytes * block_size
        num_blocks = int(size_gib * 2**30 / (block_bytes * self.tensor_parallel_size))
        if num_blocks > MOST_HOST_BLOCKS:
            raise ConfigError(
                f"kv_offloading_size is {size_gib:g}, room for {num_blocks:,} KV blocks, more than can be"
                f" simulated ({MOST_HOST_BLOCKS:,}): give less"
            )
        bytes_per_s = self.gpu.host_bytes_per_s if gb_per_s is None else gb_per_s * 1e9
        block_s = block_bytes / self.pipeline_parallel_size / bytes_per_s
        return HostMemory(num_blocks, block_s, block_s)


def _has_norms(layer: Layer) -> bool:
    """True if queries and keys of a layer are normalised."""
    return isinstance(layer.attention, Heads) and layer.attention.has_norms
