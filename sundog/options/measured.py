"""Options of an engine that was measured (`sundog calibrate`): its own limits, but for those asked for."""

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from sundog.actors.config import ConfigError
from sundog.options.engine import EngineOptions
from sundog.options.row import rows
from sundog.options.simulation import CostOptions, ScalingOptions, TargetOptions

if TYPE_CHECKING:
    from sundog.sim.cost.profile import MeasuredEngine, Profile


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
    "override_generation_config",
)
"""The options of a measured engine that cannot be asked to be otherwise."""


def profile_of(target: TargetOptions) -> "tuple[str, Profile] | None":
    """The file and engine that stand for a GPU or a cost model; None if neither is such a file."""
    for file in (target.gpu, target.cost):
        if file.endswith(".toml"):
            from sundog.sim.cost.profile import read_profile

            if (profile := read_profile(file)) is not None:
                return file, profile
    return None


NOT_SCALED = ScalingOptions()


def simulated_target(
    model: str | None, gpu: str, costs: CostOptions, scaling: ScalingOptions = NOT_SCALED
) -> TargetOptions:
    """Return the target of `--simulate GPU`: that GPU or a measured engine's file, with a known model."""
    return TargetOptions(model=model or TargetOptions.model, gpu=gpu, **asdict(costs), **asdict(scaling))


def as_measured(
    engine: EngineOptions, target: TargetOptions, file: str, known: "MeasuredEngine"
) -> EngineOptions:
    """The options with the engine's limits where none are asked for. ConfigError for another engine's."""
    _refuse_other_engines(engine, target, file, known)
    limits = {row.name: getattr(known, row.name) for row in rows(EngineOptions) if hasattr(known, row.name)}
    asked = {name: getattr(engine, name) for name in limits if getattr(engine, name) is not None}
    return replace(engine, **{**limits, **asked, "block_size": known.block_size})


def _refuse_other_engines(
    engine: EngineOptions, target: TargetOptions, file: str, known: "MeasuredEngine"
) -> None:
    """Refuse options that contradict a profile, which describes one engine."""
    own = {"model": known.model, "gpu": file, "cost": file, "block_size": known.block_size}
    names = (*own, *FIXED, "kv_offloading_size")
    for record in (target, engine):
        for row in rows(type(record)):
            value = getattr(record, row.name)
            if row.name in names and value not in (row.default, own.get(row.name)):
                raise ConfigError(
                    f"{row.flag} is {value}, and {file} is of one engine, {known.model} with blocks of"
                    f" {known.block_size}: leave it out"
                )
