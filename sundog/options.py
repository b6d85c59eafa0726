"""The options that serving and simulating share, under vLLM's names, and what they come to."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from actors.config import ConfigError, EngineConfig, SchedulerConfig
from actors.core.config import VICTIMS
from actors.core.engine_version import NEWEST, decisions_of, is_async
from actors.core.policies import POLICIES, find_policy

if TYPE_CHECKING:
    from actors.messages import Capacity
    from sim.cost.work import CostModel
    from sim.figures.metrics import Terms
    from sim.target import Target

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

DEFAULT_LIMITS = (2048, 256)
"""vLLM's (max_num_batched_tokens, max_num_seqs) where nothing is known of the hardware."""

ENGINE_OPTIONS = [
    click.option("--max-num-seqs", type=int, help="Most requests that run at once."),
    click.option("--max-num-batched-tokens", type=int, help="Token budget of a step."),
    click.option("--max-model-len", type=int, help="Longest context; by default the model's."),
    click.option("--block-size", type=int, default=16, show_default=True, help="Tokens per block."),
    click.option(
        "--num-gpu-blocks",
        "--num-gpu-blocks-override",
        type=int,
        help="KV blocks, the null block included; what fits into memory if not given.",
    ),
    click.option("--gpu-memory-utilization", type=float, help="Share of memory that may be used."),
    click.option("--tensor-parallel-size", "-tp", type=int, default=1, show_default=True),
    click.option("--dtype", default="auto", show_default=True, help="Of weights and activations."),
    click.option(
        "--policy",
        "--scheduling-policy",
        default="fcfs",
        show_default=True,
        help=f"Scheduling policy: {', '.join(POLICIES)}, or FILE.py:NAME; perhaps :KEY=NUMBER,….",
    ),
    click.option(
        "--preempt-for-priority",
        is_flag=True,
        help="Let a waiting request take the place of less urgent running ones.",
    ),
    click.option(
        "--max-overtakes",
        type=int,
        default=0,
        show_default=True,
        help="How often others may pass a request for which there are no KV blocks.",
    ),
    click.option(
        "--victim",
        type=click.Choice(VICTIMS),
        default="policy",
        show_default=True,
        help="Who is preempted when KV blocks run out.",
    ),
    click.option(
        "--refuse-never-fit",
        is_flag=True,
        help="Allow a KV cache below the context; refuse what could outgrow it.",
    ),
    click.option("--replicas", type=int, default=1, show_default=True, help="Equal engines."),
    click.option(
        "--router",
        default="round-robin",
        show_default=True,
        help="round-robin or least-requests: which replica a request goes to.",
    ),
    click.option("--enable-prefix-caching/--no-enable-prefix-caching", default=True),
    click.option("--enable-chunked-prefill/--no-enable-chunked-prefill", default=True),
    click.option(
        "--async-scheduling/--no-async-scheduling",
        default=None,
        help="Plan a step while the last one runs; simulated, as the engine version does; on a CPU, off.",
    ),
    click.option(
        "--engine-version",
        default=NEWEST,
        show_default=True,
        help="The vLLM whose behaviour is predicted; below 0.14 scheduling is synchronous.",
    ),
    click.option("--long-prefill-token-threshold", type=int, default=0, show_default=True),
    click.option("--watermark", type=float, default=0.0, show_default=True),
    click.option("--prefix-caching-hash-algo", default="sha256", show_default=True),
    click.option("--max-waiting", type=int, help="Refuse requests beyond so many unfinished."),
    click.option("--debug", is_flag=True, help="Verify every invariant when the engine is idle."),
    click.option("--seed", type=int, default=0, show_default=True),
]


def engine_options(command: F) -> F:
    """The options that serving and simulating share, under vLLM's names."""
    for option in reversed(ENGINE_OPTIONS):
        command = option(command)
    return command


def parse_slo(_context: click.Context, _option: click.Parameter, text: str | None) -> dict[str, float]:
    """`ttft=0.5,tpot=0.05` as a mapping."""
    limits = {}
    for part in (text or "").split(",") if text else []:
        name, _, value = part.partition("=")
        if name not in ("ttft", "tpot", "e2e"):
            raise ConfigError(f"slo has {name!r}: known are ttft, tpot and e2e, as in ttft=0.5")
        try:
            limits[name] = float(value)
        except ValueError:
            raise ConfigError(f"slo {name} is {value!r}: give seconds, as in {name}=0.5") from None
        if not limits[name] > 0:
            raise ConfigError(f"slo {name} is {value}: it must be above 0")
    return limits


@dataclass(frozen=True, slots=True)
class Engine:
    """The values of the shared options."""

    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    max_model_len: int | None
    block_size: int
    num_gpu_blocks: int | None
    gpu_memory_utilization: float | None
    tensor_parallel_size: int
    dtype: str
    policy: str
    preempt_for_priority: bool
    max_overtakes: int
    victim: Literal["policy", "least-recompute"]
    refuse_never_fit: bool
    replicas: int
    router: str
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    async_scheduling: bool | None
    engine_version: str
    long_prefill_token_threshold: int
    watermark: float
    prefix_caching_hash_algo: str
    max_waiting: int | None
    debug: bool
    seed: int

    def config(self, context: int | None, limits: tuple[int, int] = DEFAULT_LIMITS) -> EngineConfig:
        """The deployment, for a model whose own context is `context` tokens."""
        if self.max_model_len is not None and context is not None and self.max_model_len > context:
            raise ConfigError(
                f"max_model_len is {self.max_model_len}, but the model's context is {context}:"
                " lower --max-model-len"
            )
        max_model_len = self.max_model_len or context or 4096
        scheduler = SchedulerConfig(
            max_num_seqs=or_default(self.max_num_seqs, limits[1]),
            max_num_batched_tokens=or_default(self.max_num_batched_tokens, limits[0]),
            max_model_len=max_model_len,
            num_gpu_blocks=or_default(self.num_gpu_blocks, 2),
            block_size=self.block_size,
            enable_prefix_caching=self.enable_prefix_caching,
            enable_chunked_prefill=self.enable_chunked_prefill,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            async_scheduling=bool(self.async_scheduling),
            engine_version=decisions_of(self.engine_version),
            watermark=self.watermark,
            preempt_for_priority=self.preempt_for_priority,
            max_overtakes=self.max_overtakes,
            victim=self.victim,
        )
        return EngineConfig(
            scheduler=scheduler,
            policy=find_policy(self.policy),
            num_gpu_blocks=self.num_gpu_blocks,
            replicas=self.replicas,
            router=self.router,
            max_waiting=self.max_waiting,
            refuse_never_fit=self.refuse_never_fit,
            prefix_caching_hash_algo=self.prefix_caching_hash_algo,
            debug=self.debug,
        )

    def simulated(self) -> "Engine":
        """The same with what the engine version does by default where nothing was said."""
        chosen = or_default(self.async_scheduling, is_async(self.engine_version))
        return replace(self, async_scheduling=chosen)

    def target(self, model: str, gpu: str, cost_model: str = "auto") -> "Target":
        """The simulated hardware and model."""
        from sim.hardware.gpu import load_gpu
        from sim.hardware.model import dtype_name, load_model
        from sim.target import Target

        return Target(
            load_model(model),
            load_gpu(gpu),
            tensor_parallel_size=self.tensor_parallel_size,
            dtype=None if self.dtype == "auto" else dtype_name(self.dtype),
            gpu_memory_utilization=or_default(self.gpu_memory_utilization, 0.92),
            cost_model=cost_model,
        )


@dataclass(frozen=True, slots=True)
class Simulated:
    """A deployment whose GPUs are not there."""

    config: EngineConfig
    cost: "CostModel"
    capacity: "Capacity"
    power_w: float | None
    front_end_s: float
    num_gpus: int

    def terms(self, slo: dict[str, float], price_per_gpu_h: float | None) -> "Terms":
        """What a run of it is held against: limits as of `parse_slo`, and what its GPUs take."""
        from sim.figures.metrics import Terms

        scheduler = self.config.scheduler
        return Terms(
            **{f"slo_{name}_s": limit_s for name, limit_s in slo.items()},
            num_gpus=self.num_gpus,
            max_num_running=self.config.replicas * scheduler.max_num_running,
            block_size=scheduler.block_size,
            gpu_power_w=self.power_w,
            price_per_gpu_h=price_per_gpu_h,
        )

    @classmethod
    def of(
        cls, engine: Engine, model: str, gpu: str, host_overhead: bool, cost_model: str = "auto"
    ) -> "Simulated":
        from sim.cost.overhead import NO_OVERHEAD
        from sim.cost.overhead import host_overhead as fitted_overhead

        engine = engine.simulated()
        target = engine.target(model, gpu, cost_model)
        config = engine.config(target.model.max_positions, target.default_limits)
        capacity = target.capacity(
            config.scheduler.block_size,
            config.scheduler.max_num_batched_tokens,
            config.scheduler.max_num_seqs,
            engine.num_gpu_blocks,
        )
        config.with_blocks(capacity.num_blocks)
        overhead = NO_OVERHEAD
        if host_overhead:
            overhead = fitted_overhead(bool(engine.async_scheduling))
        cost = target.cost(overhead)
        num_gpus = config.replicas * engine.tensor_parallel_size
        return cls(config, cost, capacity, target.gpu.power_w, overhead.request_s, num_gpus)


def or_default(value: T | None, default: T) -> T:
    return default if value is None else value
