"""The options of a measured engine: its own limits, but for those that are asked for."""

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from actors.config import ConfigError, SchedulerConfig
from sundog.options.engine import Engine
from sundog.options.row import rows
from sundog.options.simulation import Costs, Target

if TYPE_CHECKING:
    from sim.cost.profile import MeasuredEngine, Profile

FIXED = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "enable_expert_parallel",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "gpu_memory_utilization",
    "speculative_config",
    "engine_version",
)
"""What a measured engine has, and cannot be asked to have otherwise."""


def profile_of(cost: str) -> "Profile | None":
    """The measured engine in a cost file; None if `cost` is no file, or one that tells of no engine."""
    if not cost.endswith(".toml"):
        return None
    from sim.cost.profile import read_profile

    return read_profile(cost)


def simulated_target(model: str | None, gpu: str, costs: Costs) -> Target:
    """What `--simulate GPU` stands for: that GPU with a known model, or the file of a measured engine."""
    target = Target(model=model or Target.model, gpu=gpu, **asdict(costs))
    if profile_of(gpu) is None:
        return target
    if costs.cost != Costs.cost:
        raise ConfigError(f"--cost is {costs.cost}, and {gpu} has its own: leave it out")
    return replace(target, gpu=Target.gpu, cost=gpu)


def as_measured(engine: Engine, target: Target, known: "MeasuredEngine") -> Engine:
    """The options with the engine's limits where none are asked for. ConfigError for another engine's."""
    _refuse_other_engines(engine, target, known)
    limits = {row.name: getattr(known, row.name) for row in rows(Engine) if hasattr(known, row.name)}
    asked = {name: getattr(engine, name) for name in limits if getattr(engine, name) is not None}
    return replace(engine, **{**limits, **asked, "block_size": known.block_size})


def _refuse_other_engines(engine: Engine, target: Target, known: "MeasuredEngine") -> None:
    """A profile is of one engine: what would make it another is refused."""
    for record, names in ((target, ("model", "gpu")), (engine, FIXED)):
        for row in rows(type(record)):
            if row.name in names and getattr(record, row.name) != row.default:
                raise ConfigError(f"{row.flag} is given, and {target.cost} is of {known.model}: leave it out")
    if engine.block_size not in (SchedulerConfig().block_size, known.block_size):
        raise ConfigError(
            f"--block-size is {engine.block_size}, and {target.cost} was measured with {known.block_size}:"
            " leave it out"
        )
