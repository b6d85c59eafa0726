"""Simulated deployments from options: shared by replay, sweep, plan and emulate."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sundog.actors.config import ConfigError
from sundog.actors.config.front_costs import FrontCosts, parse_front_costs
from sundog.actors.config.hop_costs import NO_HOPS, HopCosts, parse_hop_costs
from sundog.actors.config.speculative import SpeculativeConfig
from sundog.actors.policy_file import find_scaler
from sundog.fetched import config_folder
from sundog.options.engine import EngineOptions
from sundog.options.measured import as_measured, profile_of
from sundog.options.row import refuse
from sundog.options.simulation import LINK_GB_PER_S, TargetOptions, TermsOptions, parse_scalers
from sundog.sim.deployment.engines import Assumed, deployed, deployed_as_measured
from sundog.sim.deployment.hardware import NamedHardware
from sundog.sim.deployment.record import Simulated
from sundog.sim.figures.totals import RunTerms

if TYPE_CHECKING:
    from sundog.sim.deployment.pools import LinkRate

OF_POOLS = ("replicas", "tensor_parallel_size", "data_parallel_size", "gpu")
"""Options that each pool sets for itself."""


def deploy(engine: EngineOptions, target: TargetOptions, api_processes: int = 1) -> Simulated:
    """Return the deployment described by the options.

    More than one of `api_processes` is the number of simulated ones, unless `--front-cost` gives another.
    Raises ConfigError if the model does not fit, or the cost of its steps is unknown.
    """
    made = _equal(engine, target) if not target.pool else _pooled(engine, target)
    if target.faults not in (None, "none"):
        from sundog.sim.deployment.fleet import failing

        made = failing(made, target.faults)
    if target.scaler is not None:
        made = _scaling(made, target, target.scaler)
    if made.config.moves:
        from sundog.sim.deployment.fleet import moving

        made = moving(made, _link(target))
    hops = made.config.hops if target.hop_cost is None else parse_hop_costs(target.hop_cost)
    front = made.config.front
    if api_processes > 1:
        front = replace(front, processes=api_processes)
    if target.front_cost is not None:
        front = parse_front_costs(target.front_cost, front)
    config = replace(made.config, hops=hops, front=front)
    return replace(made, config=config, front_end_s=made.front_end_s + hops.output)


def asked_terms(asked: TermsOptions) -> RunTerms:
    """Return the limits and the price of a run; the deployment has the rest."""
    level = asked.service_level
    limits: dict[str, Any] = {f"slo_{name}_s": limit_s for name, limit_s in level.limits_s.items()}
    return RunTerms(**limits, objectives=level.objectives, price_per_gpu_h=asked.gpu_price_per_h)


def priced(engine: EngineOptions, target: TargetOptions) -> tuple[str, ...]:
    """Return remarks on costs of steps that were not measured; none if the target is refused."""
    try:
        return _hardware(engine.simulated(), target).target().remarks
    except ConfigError:
        return ()


def _equal(asked: EngineOptions, target: TargetOptions) -> Simulated:
    """Return a deployment of equal engines, of a profile's kind or of a GPU."""
    engine = asked.simulated()
    assumed = Assumed(
        engine_version=asked.engine_version,
        num_gpu_blocks=engine.num_gpu_blocks,
        plans_ahead=bool(engine.async_scheduling) or engine.drafts_ahead,
        host_overhead=target.host_overhead,
        step_scale=target.step_scale,
        offloading=target.offloading,
        seed=asked.seed,
        remarks=asked.simulated_remarks,
    )
    if (measured := profile_of(target)) is not None:
        file, profile = measured
        engine = as_measured(asked, target, file, profile.engine)
        assumed = replace(assumed, num_gpu_blocks=engine.num_gpu_blocks)
        return deployed_as_measured(profile, engine.config(None), file=file, assumed=assumed)
    hardware = _hardware(engine, target).target()
    engine = replace(engine, replicas=engine.replicas * engine.data_parallel_size)
    config = engine.config(hardware.model.max_positions, hardware.default_limits)
    return deployed(
        hardware,
        replace(config, speculation=_measured(config.speculation)),
        model=target.model,
        machine=target.gpu,
        assumed=replace(assumed, front=_front_costs(target), hops=_hop_costs(target)),
    )


def _pooled(engine: EngineOptions, target: TargetOptions) -> Simulated:
    from sundog.sim.deployment.pools import PoolPart, pooled

    refuse((engine, target), "cannot be combined with --pool: leave it out", only=OF_POOLS)
    pools = list[PoolPart]()
    for spec in target.pools:
        own: dict[str, Any] = {
            **{name: getattr(spec, name) for name in OF_POOLS if name != "gpu"},
            "router": engine.chosen_router,
            **spec.own,
        }
        try:
            engines = _equal(replace(engine, **own), replace(target, gpu=spec.gpu, pool=()))
        except ConfigError as error:
            raise ConfigError(f"--pool {spec.name}: {error}") from error
        pools.append(PoolPart(name=spec.name, role=spec.role, engines=engines))
    return pooled(pools, _link(target))


def _scaling(made: Simulated, target: TargetOptions, scaler: str) -> Simulated:
    from sundog.sim.deployment.fleet import ScalingTerms, scaling

    terms = ScalingTerms(
        least=target.scale_least or 1,
        every_s=target.scale_every_s or 15.0,
        start_s=60.0 if target.scale_start_s is None else target.scale_start_s,
    )
    return scaling(made, {role: find_scaler(text) for role, text in parse_scalers(scaler).items()}, terms)


def _link(target: TargetOptions) -> "LinkRate":
    from sundog.sim.deployment.pools import LinkRate

    rate = (target.kv_transfer_gb_per_s or LINK_GB_PER_S) * 1e9
    return LinkRate(bytes_per_s=rate, latency_s=target.kv_transfer_latency_s or 0.0)


def _front_costs(target: TargetOptions) -> FrontCosts | None:
    """Return the model of the API processes, if the cost file has one."""
    if not target.cost.endswith(".toml"):
        return None
    from sundog.sim.cost.profile import front_costs

    return front_costs(target.cost)


def _hop_costs(target: TargetOptions) -> HopCosts:
    """Return the latency to the engine and back, if the cost file has one."""
    if not target.cost.endswith(".toml"):
        return NO_HOPS
    from sundog.sim.cost.profile import hop_costs

    return hop_costs(target.cost)


def _hardware(engine: EngineOptions, target: TargetOptions) -> NamedHardware:
    return NamedHardware(
        model=target.model,
        gpu=target.gpu,
        cost_model=target.cost,
        dtype=engine.dtype,
        kv_cache_dtype=engine.kv_cache_dtype,
        quantization=engine.quantization,
        gpu_memory_utilization=engine.gpu_memory_utilization,
        generation=engine.drawing,
        speculation=engine.speculation,
        tensor_parallel_size=engine.tensor_parallel_size,
        enforce_eager=engine.enforce_eager,
        pipeline_parallel_size=engine.pipeline_parallel_size,
        data_parallel_size=engine.data_parallel_size,
        expert_parallel=engine.enable_expert_parallel,
        folder_of=config_folder,
    )


def _measured(asked: SpeculativeConfig | None) -> SpeculativeConfig | None:
    if asked is None or not isinstance(asked.acceptance, str):
        return asked
    if asked.proposed is not None:
        raise ConfigError("--speculative-config: the record already gives proposed; leave it out")
    from sundog.sim.explain.load import measured_drafts  # it brings the reader of journals along

    return replace(asked, measured=measured_drafts(Path(asked.acceptance), asked.num_tokens))
