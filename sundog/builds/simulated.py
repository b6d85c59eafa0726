"""From options to a deployment whose GPUs are not there: shared by replay, sweep, plan and emulate."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sundog.actors.config import ConfigError
from sundog.actors.config.generation import GREEDY, parse_override
from sundog.actors.config.hop_costs import parse_hop_costs
from sundog.actors.config.speculative import SpeculativeConfig
from sundog.actors.core.engine_version import NEWEST, is_async, is_newer
from sundog.actors.policy_file import find_scaler
from sundog.options.engine import EngineOptions
from sundog.options.measured import as_measured, profile_of
from sundog.options.row import refuse
from sundog.options.simulation import LINK_GB_PER_S, TargetOptions, TermsOptions, parse_scalers
from sundog.sim.deployment.engines import Assumed, deployed, deployed_as_measured
from sundog.sim.deployment.record import Simulated
from sundog.sim.figures.totals import RunTerms
from sundog.sim.hardware.formats import dtype_name, kv_dtype_name
from sundog.sim.hardware.gpu import load_gpu
from sundog.sim.hardware.memory import sharing_ranks
from sundog.sim.hardware.model import draft_of, load_model
from sundog.sim.hardware.quantization import quantised
from sundog.sim.target import Target

if TYPE_CHECKING:
    from sundog.sim.deployment.pools import LinkRate

MEMORY_SHARE = 0.92
"""The default that vLLM has for `gpu_memory_utilization`."""
OF_POOLS = ("replicas", "tensor_parallel_size", "data_parallel_size", "gpu")
"""Options that say what each pool says itself."""


def deploy(engine: EngineOptions, target: TargetOptions) -> Simulated:
    """Return the deployment that the options describe.

    Raises ConfigError if the model does not fit, or the cost of its steps is unknown.
    """
    made = _pooled(engine, target) if target.pool else _equal(engine, target)
    if target.faults not in (None, "none"):
        from sundog.sim.deployment.fleet import failing

        made = failing(made, target.faults, engine.seed)
    if target.scaler is not None:
        made = _scaling(made, target, target.scaler)
    if made.config.moves:
        from sundog.sim.deployment.fleet import moving

        made = moving(made, _link(target), engine.seed)
    hops = made.config.hops if target.hop_cost is None else parse_hop_costs(target.hop_cost)
    front_end_s = made.front_end_s + hops.output
    return replace(made, config=replace(made.config, hops=hops), front_end_s=front_end_s)


def asked_terms(asked: TermsOptions) -> RunTerms:
    """Return the limits and the price that a run is held against; a deployment knows the rest."""
    level = asked.service_level
    limits: dict[str, Any] = {f"slo_{name}_s": limit_s for name, limit_s in level.limits_s.items()}
    return RunTerms(**limits, objectives=level.objectives, price_per_gpu_h=asked.gpu_price_per_h)


def priced(engine: EngineOptions, target: TargetOptions) -> tuple[str, ...]:
    """Return remarks on costs of steps that were not measured; none where the target is refused."""
    try:
        return _hardware(engine.simulated(), target).remarks
    except ConfigError:
        return ()


def _equal(asked: EngineOptions, target: TargetOptions) -> Simulated:
    """Equal engines, of a profile's kind or of a GPU."""
    assumed = Assumed(
        engine_version=asked.engine_version,
        host_overhead=target.host_overhead,
        step_scale=target.step_scale,
        offloading=target.offloading,
    )
    if (measured := profile_of(target)) is not None:
        file, profile = measured
        engine = as_measured(asked, target, file, profile.engine)
        assumed = replace(assumed, num_gpu_blocks=engine.num_gpu_blocks)
        return deployed_as_measured(profile, engine.config(None), file=file, assumed=assumed)
    engine = asked.simulated()
    hardware = _hardware(engine, target)
    engine = replace(engine, replicas=engine.replicas * engine.data_parallel_size)
    config = engine.config(hardware.model.max_positions, hardware.default_limits)
    made = deployed(
        hardware,
        replace(config, speculation=_measured(config.speculation)),
        model=target.model,
        machine=target.gpu,
        assumed=replace(
            assumed,
            num_gpu_blocks=engine.num_gpu_blocks,
            plans_ahead=bool(engine.async_scheduling) or engine.drafts_ahead,
            front_end_s=_front_end_s(target),
        ),
        remarks=_planned_step_by_step(asked),
    )
    if is_newer(asked.engine_version):
        newer = f"vLLM {asked.engine_version} is not known: it is taken to do what {NEWEST} does"
        made = replace(made, remarks=(*made.remarks, newer))
    return made


def _pooled(engine: EngineOptions, target: TargetOptions) -> Simulated:
    from sundog.sim.deployment.pools import PoolPart, pooled

    refuse((engine, target), "is given beside --pool, which says it: leave it out", only=OF_POOLS)
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
    return pooled(pools, _link(target), engine.seed)


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


def _front_end_s(target: TargetOptions) -> float | None:
    """The seconds of a request before its engine that the file of a cost model says."""
    if not target.cost.endswith(".toml"):
        return None
    from sundog.sim.cost.profile import front_end_s

    return front_end_s(target.cost)


def _hardware(engine: EngineOptions, target: TargetOptions) -> Target:
    model = load_model(target.model)
    if engine.quantization is not None:
        model = quantised(model, engine.quantization)
    drawn = engine.override_generation_config
    return Target(
        model,
        load_gpu(target.gpu),
        tensor_parallel_size=engine.tensor_parallel_size,
        dtype=None if engine.dtype == "auto" else dtype_name(engine.dtype),
        gpu_memory_utilization=engine.gpu_memory_utilization or MEMORY_SHARE,
        cost_model=target.cost,
        kv_dtype=kv_dtype_name(engine.kv_cache_dtype),
        expert_parallel=engine.enable_expert_parallel,
        draft=draft_of(engine.speculation, model),
        num_drafts=0 if engine.speculation is None else engine.speculation.num_tokens,
        drawing=GREEDY if drawn is None else model.drawing(parse_override(drawn)),
        pipeline_parallel_size=engine.pipeline_parallel_size,
        data_parallel_size=sharing_ranks(
            model, engine.data_parallel_size, engine.enable_expert_parallel, engine.pipeline_parallel_size
        ),
    )


def _planned_step_by_step(asked: EngineOptions) -> tuple[str, ...]:
    """Return a remark if drafts switch off a default of the engine version."""
    if asked.speculation is None or asked.async_scheduling is not None or not is_async(asked.engine_version):
        return ()
    if asked.drafts_ahead:
        return (
            "steps are planned one by one beside a draft model, where vLLM plans ahead; the host's work is"
            " taken to overlap as there",
        )
    return ("async scheduling is off beside drafts of n-grams, as in vLLM",)


def _measured(asked: SpeculativeConfig | None) -> SpeculativeConfig | None:
    if asked is None or not isinstance(asked.acceptance, str):
        return asked
    if asked.proposed is not None:
        raise ConfigError("--speculative-config: proposed is in the record, too; leave it out")
    from sundog.sim.explain.load import measured_drafts  # it brings the reader of journals along

    return replace(asked, measured=measured_drafts(Path(asked.acceptance), asked.num_tokens))
