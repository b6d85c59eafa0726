"""A deployment of equal engines: of hardware whose steps are priced, or of an engine that was measured."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sundog.actors.config import ConfigError, EngineConfig
from sundog.actors.core.config import SchedulerConfig
from sundog.actors.core.engine_version import NEWEST
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
    """What is assumed of the engines beside their hardware and their configuration."""

    engine_version: str = NEWEST
    num_gpu_blocks: int | None = None
    """The KV blocks of an engine; None: as many as its memory leaves."""
    plans_ahead: bool = True
    """Whether the host plans a step while the one before it runs."""
    host_overhead: bool = True
    """Whether the host's share of steps and requests counts."""
    front_end_s: float | None = None
    """The seconds of a request before its engine; None: as fitted with the host's share."""
    step_scale: float = 1.0
    offloading: tuple[float, float | None] = (0.0, None)
    """GiB of the host's memory for KV blocks, and the GB a second to and from it."""


def deployed(
    hardware: Target,
    config: EngineConfig,
    *,
    model: str,
    machine: str,
    assumed: Assumed,
    remarks: tuple[str, ...] = (),
) -> Simulated:
    """Return equal engines on this hardware; `remarks` are kept beside its own.

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
    has_front = assumed.front_end_s is not None and assumed.host_overhead
    priced = hardware.remarks
    return Simulated(
        config=config,
        cost=in_step(scaled(kernels, assumed.step_scale), hardware.data_parallel_size),
        kernels=(kernels,),
        capacity=capacity,
        power_w=hardware.gpu.power_w,
        front_end_s=(assumed.front_end_s or 0.0) if has_front else overhead.request_s,
        num_gpus=config.replicas * hardware.tensor_parallel_size * hardware.pipeline_parallel_size,
        model=model,
        kv_token_bytes=hardware.kv_token_bytes,
        machine=machine,
        priced=priced,
        remarks=(
            *priced,
            *(() if assumed.num_gpu_blocks else (_guess(capacity, hardware),)),
            *remarks,
            *_states(limits, asked_block_size),
            *_interval(config.scheduler, hardware.data_parallel_size),
        ),
    )


def deployed_as_measured(
    profile: "Profile", config: EngineConfig, *, file: str, assumed: Assumed
) -> Simulated:
    """Return equal engines of the kind that `sundog calibrate` measured; `file` is where its profile is."""
    known = profile.engine
    capacity = Capacity(assumed.num_gpu_blocks or known.num_gpu_blocks, known.block_size)
    config.with_blocks(capacity.num_blocks)
    check_memory(config.replicas, capacity.num_blocks)
    kernels = WithOverhead(profile.cost, NO_OVERHEAD)
    if assumed.host_overhead:
        kernels = profile.host.served(profile.cost)
        config = replace(config, hops=profile.hops)
    return Simulated(
        config=config,
        cost=scaled(kernels, assumed.step_scale),
        kernels=(kernels,),
        capacity=capacity,
        power_w=None,
        front_end_s=kernels.overhead.request_s,
        num_gpus=config.replicas,
        model=known.model,
        kv_token_bytes=known.kv_token_bytes,
        machine=f"as measured in {Path(file).name}",
    )


def _guess(capacity: Capacity, hardware: Target) -> str:
    least = "at least" if hardware.model.has_windows else "about"
    return (
        f"KV cache: {least} {capacity.num_blocks:,} blocks, estimated from the memory."
        " vLLM's log has the exact number: pass it as --num-gpu-blocks"
    )


def _states(limits: SchedulerConfig, asked: int) -> tuple[str, ...]:
    """Return a remark if blocks were enlarged so that a state of linear attention fits into one."""
    if limits.block_size == asked and not limits.keeps_states:
        return ()
    text = f"blocks hold {limits.block_size:,} tokens, so that a state of linear attention fits into one"
    if limits.keeps_states:
        text += "; prefix hits end with a block, and the memory of kept states is not counted"
    return (text,)


def _interval(scheduler: SchedulerConfig, num_ranks: int) -> tuple[str, ...]:
    """Return a remark where the engine version ignores `prefill_schedule_interval`.

    Raises ConfigError for ranks that go in step, which count the steps of all of them.
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
    return ("prefill_schedule_interval has no effect: this version of vLLM ignores it on an engine alone",)
