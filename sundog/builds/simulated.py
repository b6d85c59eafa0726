"""A deployment whose GPUs are not there, from its options: shared by replay, sweep and serve."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sundog.actors.config import ConfigError, EngineConfig
from sundog.actors.config.generation import GREEDY, parse_override
from sundog.actors.config.hop_costs import parse_hop_costs
from sundog.actors.config.pools import EnginePool
from sundog.actors.config.speculative import SpeculativeConfig
from sundog.actors.core.config import SchedulerConfig
from sundog.actors.core.engine_version import NEWEST, is_async, is_newer
from sundog.actors.messages import Capacity
from sundog.actors.policy_file import find_scaler
from sundog.options.engine import EngineOptions
from sundog.options.measured import as_measured, profile_of
from sundog.options.row import refuse
from sundog.options.simulation import LINK_GB_PER_S, TargetOptions, TermsOptions, parse_scalers
from sundog.sim.cost.composed import in_step, scaled
from sundog.sim.cost.doubt import FRONT_END_DOUBT, step_doubt
from sundog.sim.cost.overhead import NO_OVERHEAD, WithOverhead
from sundog.sim.cost.overhead import host_overhead as fitted_overhead
from sundog.sim.cost.work import CostModel
from sundog.sim.figures.totals import RunTerms
from sundog.sim.hardware.formats import dtype_name, kv_dtype_name
from sundog.sim.hardware.gpu import load_gpu
from sundog.sim.hardware.memory import sharing_ranks
from sundog.sim.hardware.model import draft_of, load_model
from sundog.sim.hardware.quantization import quantised
from sundog.sim.target import Target

if TYPE_CHECKING:
    from sundog.sim.cost.profile import Profile
    from sundog.sim.fleet.plan import FleetPlan
    from sundog.sim.replay import Furnish


MEMORY_SHARE = 0.92
"""The default that vLLM has for `gpu_memory_utilization`."""
MOST_BLOCKS_OF_ALL = 2**25
"""The pools of all replicas together take 140 bytes a block: 4.7 GB at most."""


OF_POOLS = ("replicas", "tensor_parallel_size", "data_parallel_size", "gpu")
"""Options that say what each pool says itself."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """A simulated deployment: the parts from which its graph is built."""

    config: EngineConfig
    cost: CostModel
    """The cost of a step, `--step-scale` included."""
    kernels: tuple[CostModel, ...]
    """The unscaled costs of each pool: they know how far they were asked outside what was measured."""
    capacity: Capacity
    power_w: float | None
    front_end_s: float
    num_gpus: int
    model: str
    kv_token_bytes: int
    """The keys and values of a token that a rank keeps; 0 where only times were measured."""
    machine: str
    """The machine that it runs on, for titles."""
    priced: tuple[str, ...] = ()
    """The remarks on the cost of steps where it was not measured; kept with the results."""
    remarks: tuple[str, ...] = ()
    """The remarks of `priced`, and whatever else people should know before they bet on it."""
    plan: "FleetPlan | None" = None
    """The engines of a fleet that are not all alike, or fail."""

    @property
    def furnish(self) -> "Furnish | None":
        """The maker of the engines of such a fleet."""
        return None if self.plan is None else self.plan.furnish

    @property
    def doubt(self) -> float:
        """The doubt of a step; after a run, for what it asked."""
        return max(map(step_doubt, self.kernels))

    def doubted(self) -> Iterator["Simulated"]:
        """Yield the same with steps, and the way to the engine, as short and as long as they may be."""
        doubt = self.doubt
        for side in (-1, 1):
            factor, front_end = (1 + doubt) ** side, 1 + side * FRONT_END_DOUBT
            yield replace(
                self,
                cost=scaled(self.cost, factor),
                front_end_s=front_end * self.front_end_s,
                plan=None if self.plan is None else self.plan.scaled(factor),
            )

    @classmethod
    def of(cls, engine: EngineOptions, target: TargetOptions) -> "Simulated":
        """Raises ConfigError if the model does not fit, or the cost of its steps is unknown."""
        made = cls._pooled(engine, target) if target.pool else cls._of(engine, target)
        if target.faults not in (None, "none"):
            made = made._failing(target.faults, engine.seed)
        made = made if target.scaler is None else made._scaling(target, target.scaler)
        made = made._moving(target, engine.seed) if made.config.moves else made
        hops = made.config.hops if target.hop_cost is None else parse_hop_costs(target.hop_cost)
        front_end_s = made.front_end_s + hops.output
        return replace(made, config=replace(made.config, hops=hops), front_end_s=front_end_s)

    @classmethod
    def _of(cls, engine: EngineOptions, target: TargetOptions) -> "Simulated":
        if (measured := profile_of(target)) is not None:
            return cls._measured(engine, target, *measured)
        asked, engine = engine, engine.simulated()
        hardware = _hardware(engine, target)
        engine = replace(engine, replicas=engine.replicas * engine.data_parallel_size)
        config = engine.config(hardware.model.max_positions, hardware.default_limits)
        limits = hardware.with_states(config.scheduler)
        config = replace(config, scheduler=limits, speculation=_measured(config.speculation))
        seqs, budget = limits.max_num_seqs, limits.max_num_batched_tokens
        hardware = hardware.with_limits(engine.engine_version, seqs, budget)
        capacity = hardware.capacity(
            limits.block_size, budget, seqs, engine.num_gpu_blocks, caches=limits.enable_prefix_caching
        )
        host = hardware.host_memory(*target.offloading, capacity.block_size)
        config = replace(config, scheduler=replace(config.scheduler, host_memory=host))
        config.with_blocks(capacity.num_blocks)
        _check_memory(config.replicas, capacity.num_blocks)
        plans_ahead = bool(engine.async_scheduling) or engine.drafts_ahead
        overhead = fitted_overhead(plans_ahead) if target.host_overhead else NO_OVERHEAD
        front_s = None
        if target.cost.endswith(".toml"):
            from sundog.sim.cost.profile import front_end_s

            front_s = front_end_s(target.cost)
        kernels = hardware.cost(overhead)
        cost = in_step(scaled(kernels, target.step_scale), hardware.data_parallel_size)
        num_gpus = config.replicas * engine.tensor_parallel_size * engine.pipeline_parallel_size
        priced = hardware.remarks
        remarks = priced if engine.num_gpu_blocks else (*priced, _guess(capacity, hardware))
        remarks += _planned_step_by_step(asked)
        remarks += _states(limits, engine.block_size)
        remarks += _interval(config.scheduler, hardware.data_parallel_size)
        if is_newer(asked.engine_version):
            remarks += (f"vLLM {asked.engine_version} is not known: it is taken to do what {NEWEST} does",)
        return cls(
            config,
            cost,
            kernels=(kernels,),
            capacity=capacity,
            power_w=hardware.gpu.power_w,
            front_end_s=overhead.request_s if front_s is None or not target.host_overhead else front_s,
            num_gpus=num_gpus,
            model=target.model,
            kv_token_bytes=hardware.kv_token_bytes,
            machine=target.gpu,
            priced=priced,
            remarks=remarks,
        )

    @classmethod
    def _measured(
        cls, engine: EngineOptions, target: TargetOptions, file: str, profile: "Profile"
    ) -> "Simulated":
        known = profile.engine
        engine = as_measured(engine, target, file, known)
        config = engine.config(None)
        capacity = Capacity(engine.num_gpu_blocks or known.num_gpu_blocks, known.block_size)
        config.with_blocks(capacity.num_blocks)
        _check_memory(config.replicas, capacity.num_blocks)
        kernels = WithOverhead(profile.cost, NO_OVERHEAD)
        if target.host_overhead:
            kernels = profile.host.served(profile.cost)
            config = replace(config, hops=profile.hops)
        cost = scaled(kernels, target.step_scale)
        return cls(
            config,
            cost,
            kernels=(kernels,),
            capacity=capacity,
            power_w=None,
            front_end_s=kernels.overhead.request_s,
            num_gpus=config.replicas,
            model=known.model,
            kv_token_bytes=known.kv_token_bytes,
            machine=f"as measured in {Path(file).name}",
        )

    @classmethod
    def _pooled(cls, engine: EngineOptions, target: TargetOptions) -> "Simulated":
        from sundog.sim.fleet.plan import FleetPlan, PlannedEngine

        refuse((engine, target), "is given beside --pool, which says it: leave it out", only=OF_POOLS)
        pools, made, members = target.pools, list[Simulated](), list[PlannedEngine]()
        for spec in pools:
            own: dict[str, Any] = {
                **{name: getattr(spec, name) for name in OF_POOLS if name != "gpu"},
                "router": engine.chosen_router,
                **spec.own,
            }
            try:
                part = cls._of(replace(engine, **own), replace(target, gpu=spec.gpu, pool=()))
            except ConfigError as error:
                raise ConfigError(f"--pool {spec.name}: {error}") from error
            rate = (target.kv_transfer_gb_per_s or LINK_GB_PER_S) * 1e9
            if not part.kv_token_bytes:
                raise ConfigError(
                    f"--pool {spec.name}: {spec.gpu} does not say how many bytes a token has: calibrate again"
                )
            member = PlannedEngine(
                spec.name,
                spec.role,
                cost=part.cost,
                capacity=part.capacity,
                num_gpus=spec.tensor_parallel_size * engine.pipeline_parallel_size,
                tokens_per_s=rate / part.kv_token_bytes,
            )
            made.append(part)
            members += [member] * part.config.replicas
        last, configs = made[-1], [part.config for part in made]
        context = min(config.scheduler.max_model_len for config in configs)
        config = replace(
            last.config,
            replicas=len(members),
            scheduler=replace(last.config.scheduler, max_model_len=context),
            pools=tuple(
                EnginePool(spec.role, config.replicas, replace(config.scheduler, max_model_len=context))
                for spec, config in zip(pools, configs, strict=True)
            ),
        )
        _check_memory(len(members), max(part.capacity.num_blocks for part in made))
        return replace(
            last,
            config=config,
            kernels=tuple(each for part in made for each in part.kernels),
            num_gpus=sum(part.num_gpus for part in made),
            power_w=_mean_power_w(made),
            machine=", ".join(spec.name for spec in pools),
            priced=tuple(dict.fromkeys(text for part in made for text in part.priced)),
            remarks=tuple(dict.fromkeys(text for part in made for text in part.remarks)),
            plan=FleetPlan(tuple(members), target.kv_transfer_latency_s or 0.0, seed=engine.seed),
        )

    def _failing(self, file: str, seed: int) -> "Simulated":
        from sundog.sim.fleet.faults import drawn_faults, read_faults

        if (plan := self._planned(seed)).has_ranks_in_step:
            raise ConfigError("--faults: ranks that share experts go in step, and do not fail apart")
        config = self.config
        faults = drawn_faults(read_faults(file), config.replicas, seed, has_links=config.passes_on)
        return replace(self, plan=replace(plan, faults=faults))

    def _planned(self, seed: int = 0) -> "FleetPlan":
        from sundog.sim.fleet.plan import FleetPlan, PlannedEngine

        num_replicas = self.config.replicas
        member = PlannedEngine(
            self.machine,
            "both",
            cost=self.cost,
            capacity=self.capacity,
            num_gpus=self.num_gpus // num_replicas,
        )
        return self.plan or FleetPlan((member,) * num_replicas, seed=seed)

    def _scaling(self, target: TargetOptions, scaler: str) -> "Simulated":
        from sundog.sim.fleet.scaling import Scaling

        plan, by_role = self._planned(), parse_scalers(scaler)
        if plan.has_ranks_in_step:
            raise ConfigError("--scaler: ranks that share experts go in step, and do not scale apart")
        role_of = {each.pool: each.role for each in plan.engines} if self.config.pools else {}
        roles = sorted({*role_of.values()})
        for role in by_role:
            if role is not None and role not in roles:
                known = f"the pools are {', '.join(roles)}" if roles else "there is no --pool"
                raise ConfigError(f"--scaler names {role}, and {known}: name a pool, or the scaler alone")
        terms = (
            target.scale_least or 1,
            target.scale_every_s or 15.0,
            60.0 if target.scale_start_s is None else target.scale_start_s,
        )
        scaled: list[Scaling] = []
        names: list[str | None] = [*role_of] if role_of else [None]
        for pool in names:
            text = by_role.get(None if pool is None else role_of[pool], by_role.get(None))
            most = sum(pool in (None, each.pool) for each in plan.engines)
            if text is not None and terms[0] > most:
                given = "--replicas, the most," if pool is None else f"the most of pool {pool}"
                raise ConfigError(f"--scale-least is {terms[0]}, and {given} {most}")
            if text is not None:
                scaled.append(Scaling(find_scaler(text), *terms, pool))
        return replace(self, plan=replace(plan, scaling=tuple(scaled)))

    def _moving(self, target: TargetOptions, seed: int) -> "Simulated":
        if (plan := self._planned(seed)).has_ranks_in_step:
            raise ConfigError("--router: ranks that share experts go in step, and pass no requests on")
        if not self.kv_token_bytes:
            raise ConfigError("--router moves requests: give a --gpu and a --model that say a token's bytes")
        rate = (target.kv_transfer_gb_per_s or LINK_GB_PER_S) * 1e9
        engines = tuple(
            each if each.tokens_per_s < inf else replace(each, tokens_per_s=rate / self.kv_token_bytes)
            for each in plan.engines
        )
        latency_s = target.kv_transfer_latency_s or 0.0
        return replace(self, plan=replace(plan, engines=engines, link_latency_s=latency_s, moves=True))

    def terms(self, asked: TermsOptions) -> RunTerms:
        """Return the terms of a run: the limits asked for, and the power and price of its GPUs."""
        scheduler = self.config.scheduler
        level = asked.service_level
        return RunTerms(
            **{f"slo_{name}_s": limit_s for name, limit_s in level.limits_s.items()},
            objectives=level.objectives,
            num_gpus=self.num_gpus,
            max_num_running=self.config.replicas * scheduler.max_num_running,
            block_size=scheduler.block_size,
            gpu_power_w=self.power_w,
            price_per_gpu_h=asked.gpu_price_per_h,
        )


def _states(limits: SchedulerConfig, asked: int) -> tuple[str, ...]:
    """Return a remark if blocks were enlarged so that a state of linear attention fits into one."""
    if limits.block_size == asked and not limits.keeps_states:
        return ()
    text = f"blocks hold {limits.block_size:,} tokens, so that a state of linear attention fits into one"
    if limits.keeps_states:
        text += "; prefix hits end with a block, and the memory of kept states is not counted"
    return (text,)


def _mean_power_w(made: "list[Simulated]") -> float | None:
    """Return the mean power of the fleet's GPUs in watts; None if any is unknown."""
    if any(part.power_w is None for part in made):
        return None
    total_w = sum((part.power_w or 0.0) * part.num_gpus for part in made)
    return total_w / sum(part.num_gpus for part in made)


def priced(engine: EngineOptions, target: TargetOptions) -> tuple[str, ...]:
    """Return remarks on costs of steps that were not measured; none where the target is refused."""
    try:
        return _hardware(engine.simulated(), target).remarks
    except ConfigError:
        return ()


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


def _guess(capacity: Capacity, hardware: Target) -> str:
    least = "at least" if hardware.model.has_windows else "about"
    return (
        f"KV cache: {least} {capacity.num_blocks:,} blocks, estimated from the memory."
        " vLLM's log has the exact number: pass it as --num-gpu-blocks"
    )


def _check_memory(replicas: int, num_blocks: int) -> None:
    if replicas * num_blocks > MOST_BLOCKS_OF_ALL:
        raise ConfigError(
            f"{num_blocks:,} KV blocks in each of {replicas:,} replicas are more than can be simulated at"
            f" once ({MOST_BLOCKS_OF_ALL:,} in all): give fewer --replicas, or --num-gpu-blocks of at most"
            f" {MOST_BLOCKS_OF_ALL // replicas}"
        )
