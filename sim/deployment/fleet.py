"""A deployment whose engines fail, grow in number and shrink, or pass requests to each other."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from sundog.actors.config import ConfigError
from sundog.actors.core.routers.fleet_state import Role
from sundog.actors.core.scalers import Scaler
from sundog.sim.deployment.pools import LinkRate
from sundog.sim.deployment.record import Simulated
from sundog.sim.fleet.faults import drawn_faults, read_faults
from sundog.sim.fleet.plan import FleetPlan
from sundog.sim.fleet.scaling import Scaling


def failing(deployment: Simulated, file: str, seed: int) -> Simulated:
    """Return the deployment with the faults of a file, drawn by the seed.

    Raises ConfigError for ranks that share experts, and for what the file has wrong.
    """
    plan = _apart(deployment, "--faults", "do not fail apart")
    config = deployment.config
    faults = drawn_faults(read_faults(file), config.replicas, seed, has_links=config.passes_on)
    seed = seed if deployment.plan is None else plan.seed
    return replace(deployment, plan=replace(plan, faults=faults, seed=seed))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingTerms:
    """When a scaler is asked, with how many replicas it begins, and how long another takes to start."""

    least: int = 1
    every_s: float = 15.0
    start_s: float = 60.0


def scaling(deployment: Simulated, scalers: Mapping[Role | None, Scaler], terms: ScalingTerms) -> Simulated:
    """Return the deployment with a scaler for each pool of a role; that of None is for all others.

    Raises ConfigError for ranks that share experts, a role without a pool, and more replicas than there are.
    """
    plan = _apart(deployment, "--scaler", "do not scale apart")
    role_of = {each.pool: each.role for each in plan.engines} if deployment.config.pools else {}
    roles = sorted({*role_of.values()})
    for role in scalers:
        if role is not None and role not in roles:
            known = f"the pools are {', '.join(roles)}" if roles else "there is no --pool"
            raise ConfigError(f"--scaler names {role}, and {known}: name a pool, or the scaler alone")
    scaled = list[Scaling]()
    names: list[str | None] = [*role_of] if role_of else [None]
    for pool in names:
        scaler = scalers.get(None if pool is None else role_of[pool], scalers.get(None))
        if scaler is None:
            continue
        most = sum(pool in (None, each.pool) for each in plan.engines)
        if terms.least > most:
            given = "--replicas, the most," if pool is None else f"the most of pool {pool}"
            raise ConfigError(f"--scale-least is {terms.least}, and {given} {most}")
        member = Scaling(scaler, terms.least, every_s=terms.every_s, start_s=terms.start_s, pool=pool)
        scaled.append(member)
    return replace(deployment, plan=replace(plan, scaling=tuple(scaled)))


def moving(deployment: Simulated, link: LinkRate, seed: int) -> Simulated:
    """Return the deployment with links, over which engines pass requests to others of their role.

    Raises ConfigError for ranks that share experts, and where it is not known how many bytes a token has.
    """
    plan = _apart(deployment, "--router", "pass no requests on")
    if not deployment.kv_token_bytes:
        raise ConfigError("--router moves requests: give a --gpu and a --model that say a token's bytes")
    rate = link.tokens_per_s(deployment.kv_token_bytes)
    engines = tuple(
        each if each.tokens_per_s < inf else replace(each, tokens_per_s=rate) for each in plan.engines
    )
    seed = seed if deployment.plan is None else plan.seed
    plan = replace(plan, engines=engines, link_latency_s=link.latency_s, moves=True, seed=seed)
    return replace(deployment, plan=plan)


def _apart(deployment: Simulated, option: str, cannot: str) -> FleetPlan:
    """Return the plan of the fleet, whose engines must be apart."""
    if (plan := deployment.fleet_plan).has_ranks_in_step:
        raise ConfigError(f"{option}: ranks that share experts go in step, and {cannot}")
    return plan
