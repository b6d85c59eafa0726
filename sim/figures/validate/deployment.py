"""A real server as it is simulated: its GPUs, its limits, its ranks."""

from dataclasses import dataclass, replace

from actors.config import EngineConfig
from actors.core.config import SchedulerConfig
from actors.core.routers.rules import LeastRequests
from actors.messages import Capacity
from sim.cost.composed import in_step, scaled
from sim.cost.work import CostModel
from sim.figures.validate.measured import Server
from sim.hardware.formats import dtype_name, kv_dtype_name
from sim.hardware.gpu import load_gpu
from sim.hardware.model import draft_of, load_model
from sim.hardware.parallel import sharing_ranks
from sim.hardware.quantization import quantised
from sim.target import Target


@dataclass(frozen=True, slots=True)
class Deployment:
    """`capacity` is of each data-parallel rank, a replica; requests go to the one with the fewest."""

    target: Target
    config: EngineConfig
    capacity: Capacity

    @classmethod
    def of(cls, server: Server, cost_model: str = "auto") -> "Deployment":
        """Raises ConfigError for what cannot be predicted."""
        target = _target(server, cost_model)
        options, asked = server.options, server.options.speculation
        seqs, budget = server.max_num_seqs, server.max_num_batched_tokens
        target = target.with_limits(server.engine_version, seqs, budget)
        capacity = target.capacity(options.block_size, budget, seqs, server.num_gpu_blocks)
        limits = SchedulerConfig(
            max_num_seqs=seqs,
            max_num_batched_tokens=budget,
            max_model_len=server.max_model_len or target.model.max_positions or 4096,
            block_size=options.block_size,
            async_scheduling=server.async_scheduling and asked is None,
            num_gpu_blocks=server.num_gpu_blocks,
            enable_prefix_caching=options.enable_prefix_caching,
            enable_chunked_prefill=options.enable_chunked_prefill,
            pipeline_parallel_size=options.pipeline_parallel_size,
            num_speculative_tokens=0 if asked is None else asked.num_tokens,
            num_lookahead_tokens=0 if asked is None else asked.num_lookahead_tokens,
        )
        config = EngineConfig(
            scheduler=limits,
            decode_runs=True,
            refuse_never_fit=True,
            replicas=options.data_parallel_size,
            router=LeastRequests(),
            speculation=asked,
        )
        return cls(target, config, capacity)

    @property
    def max_num_running(self) -> int:
        """Requests that run at once, at most, at all ranks."""
        return self.config.replicas * self.config.scheduler.max_num_running

    @property
    def num_blocks(self) -> int:
        """Of all ranks."""
        return self.config.replicas * self.capacity.num_blocks

    def played_cost(self, cost: CostModel, factor: float = 1.0) -> CostModel:
        """`cost` of steps that are `factor` times as long, of ranks in step where they share experts."""
        return in_step(scaled(cost, factor), self.target.data_parallel_size)


def _target(server: Server, cost_model: str) -> Target:
    model, options = load_model(server.model), server.options
    if options.quantization is not None:
        model = quantised(model, options.quantization)
    ranks, whole, stages = (
        options.data_parallel_size,
        options.enable_expert_parallel,
        options.pipeline_parallel_size,
    )
    asked = options.speculation
    target = Target(
        model,
        load_gpu(server.gpu),
        tensor_parallel_size=server.tensor_parallel_size,
        dtype=None if options.dtype == "auto" else dtype_name(options.dtype),
        cost_model=cost_model,
        kv_dtype=kv_dtype_name(options.kv_cache_dtype),
        expert_parallel=whole,
        draft=draft_of(asked, model),
        num_drafts=0 if asked is None else asked.num_tokens,
        pipeline_parallel_size=stages,
        data_parallel_size=sharing_ranks(model, ranks, whole, stages),
    )
    if server.gpu_memory_utilization is None:
        return target
    return replace(target, gpu_memory_utilization=server.gpu_memory_utilization)
