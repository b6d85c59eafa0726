"""Deployment of equal engines: on priced hardware, or of a measured engine."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sundog.actors.config import ConfigError, EngineConfig
from sundog.actors.config.front_costs import FrontCosts
from sundog.actors.config.hop_costs import NO_HOPS, HopCosts
from sundog.actors.core.config import SchedulerConfig
from sundog.actors.core.engine_version import NEWEST, is_newer
from sundog.actors.core.records import dataclass
from sundog.actors.messages import Capacity
from sundog.sim.cost.composed import in_step, scaled
from sundog.sim.cost.overhead import NO_OVERHEAD, WithOverhead
from sundog.sim.cost.overhead import host_overhead as fitted_overhead
from sundog.sim.deployment.record import Simulated, check_memory
from sundog.sim.target import Target

if TYPE_CHECKING:
    from sundog.sim.cost.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumed:
    """Assumptions about the engines besides their hardware and configuration."""

    engine_version: str = NEWEST
    num_gpu_blocks: int | None = None
    """KV blocks of an engine; None if they are to be computed from its memory."""
    plans_ahead: bool = True
    """Whether the host plans a step while the previous one runs."""
    host_overhead: bool = True
    """Whether the host's share of steps and requests counts."""
    front: FrontCosts | None = None
    """API processes before the engine; None: as fitted with the host's share."""
    hops: HopCosts = NO_HOPS
    """Latency of messages to the engine and back; it counts with the host's share."""
    step_scale: float = 1.0
    offloading: tuple[float, float | None] = (0.0, None)
    """GiB of host memory for KV blocks, and GB/s to and from it."""
    seed: int = 0
    remarks: tuple[str, ...] = ()
    """Remarks on these assumptions, kept beside those on the hardware."""


def deployed(
    hardware: Target, config: EngineConfig, *, model: str, machine: str, assumed: Assumed
) -> Simulated:
    """Return equal engines on this hardware.

    Raises ConfigError if the model does not fit, or the cost of its steps is unknown.
    """
    asked_block_size = config.scheduler.block_size
    limits = hardware.with_states(config.scheduler)
    config = replace(config, scheduler=limits)
    seqs, budget = limits.max_num_seqs, limits.max_num_batched_tokens
    hardware = hardware.with_limits(assumed.engine_version, seqs, budget)
    capacity = hardware.capacity(
        limits.block_size, budget, seqs, assumed.num_gpu_blocks, caches=limits.enable_prefix_caching
    )
    host = hardware.host_memory(*assumed.offloading, capacity.block_size)
    config = replace(config, scheduler=replace(config.scheduler, host_memory=host))
    config.with_blocks(capacity.num_blocks)
    check_memory(config.replicas, capacity.num_blocks)
    overhead = fitted_overhead(assumed.plans_ahead) if assumed.host_overhead else NO_OVERHEAD
    kernels = hardware.cost(overhead)
    own_front = assumed.front if assumed.host_overhead else None
    config = replace(config, front=hardware.front(overhead) if own_front is None else own_front)
    if assumed.host_overhead:
        config = replace(config, hops=assumed.hops)
    priced = hardware.remarks
    return Simulated(
        config=config,
        cost=in_step(scaled(kernels, assumed.step_scale), hardware.data_parallel_size),
        kernels=(kernels,),
        capacity=capacity,
        power_w=hardware.gpu.power_w,
        num_gpus=config.replicas * hardware.tensor_parallel_size * hardware.pipeline_parallel_size,
        model=model,
        kv_token_bytes=hardware.kv_token_bytes,
        machine=machine,
        seed=assumed.seed,
        priced=priced,
        remarks=(
            *priced,
            *(() if assumed.num_gpu_blocks else (_guess(capacity, hardware),)),
            *assumed.remarks,
            *_states(limits, asked_block_size),
            *_interval(config.scheduler, hardware.data_parallel_size),
            *_newer(assumed.engine_version),
        ),
    )


def deployed_as_measured(
    profile: "Profile", config: EngineConfig, *, file: str, assumed: Assumed
) -> Simulated:
    """Return equal engines as measured by `sundog calibrate`; `file` is the path of the profile."""
    known = profile.engine
    capacity = Capacity(assumed.num_gpu_blocks or known.num_gpu_blocks, known.block_size)
    config.with_blocks(capacity.num_blocks)
    check_memory(config.replicas, capacity.num_blocks)
    kernels = WithOverhead(profile.cost, NO_OVERHEAD)
    if assumed.host_overhead:
        kernels = profile.host.served(profile.cost)
        config = replace(config, hops=profile.hops, front=profile.host.front)
    return Simulated(
        config=config,
        cost=scaled(kernels, assumed.step_scale),
        kernels=(kernels,),
        capacity=capacity,
        power_w=None,
        num_gpus=config.replicas,
        model=known.model,
        kv_token_bytes=known.kv_token_bytes,
        machine=f"as measured in {Path(file).name}",
        seed=assumed.seed,
    )


def _guess(capacity: Capacity, hardware: Target) -> str:
    least = "at least" if hardware.model.has_windows else "about"
    return (
        f"KV cache: {least} {capacity.num_blocks:,} blocks, estimated from the memory."
        " vLLM's log has the exact number: pass it as --num-gpu-blocks"
    )


def _states(limits: SchedulerConfig, asked: int) -> tuple[str, ...]:
    """Return a remark if blocks were enlarged so that one can hold a state of linear attention."""
    if limits.block_size == asked and not limits.keeps_states:
        return ()
    text = f"blocks hold {limits.block_size:,} tokens, so that a state of linear attention fits into one"
    if limits.keeps_states:
        text += "; prefix hits end with a block, and the memory of kept states is not counted"
    return (text,)


def _newer(version: str) -> tuple[str, ...]:
    if not is_newer(version):
        return ()
    return (f"vLLM {version} is not known: it is treated as {NEWEST} does",)


def _interval(scheduler: SchedulerConfig, num_ranks: int) -> tuple[str, ...]:
    """Return a remark if the engine version ignores `prefill_schedule_interval`.

    Raises ConfigError for ranks in step, which count the steps of all of them.
    """
    if scheduler.prefill_schedule_interval == 1:
        return ()
    if num_ranks > 1:
        raise ConfigError(
            "prefill_schedule_interval cannot be combined with data-parallel ranks that share experts: leave"
            " --prefill-schedule-interval or --enable-expert-parallel out"
        )
    if scheduler.decisions.holds_prefills:
        return ()
    return ("prefill_schedule_interval has no effect: this version of vLLM ignores it on a single engine",)
