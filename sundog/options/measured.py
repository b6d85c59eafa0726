"""Options of a measured engine (`sundog calibrate`): its own limits unless others are given."""

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
    "enforce_eager",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "gpu_memory_utilization",
    "speculative_config",
    "engine_version",
    "override_generation_config",
)
"""Options of a measured engine that cannot be changed."""


def profile_of(target: TargetOptions) -> "tuple[str, Profile] | None":
    """Return the calibration file given as --gpu or --cost with its engine, if any."""
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
    """Return the options with the engine's limits as defaults. ConfigError for options of another engine."""
    _refuse_other_engines(engine, target, file, known)
    limits = {row.name: getattr(known, row.name) for row in rows(EngineOptions) if hasattr(known, row.name)}
    asked = {name: getattr(engine, name) for name in limits if getattr(engine, name) is not None}
    return replace(engine, **{**limits, **asked, "block_size": known.block_size})


def _refuse_other_engines(
    engine: EngineOptions, target: TargetOptions, file: str, known: "MeasuredEngine"
) -> None:
    """Raise ConfigError for options that contradict a profile, which describes one engine."""
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
