"""Fleets of a deployment: faults, autoscaling, and moves of requests between engines."""

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


def failing(deployment: Simulated, file: str) -> Simulated:
    """Return the deployment with the faults of a file, sampled by its seed.

    Raises ConfigError for ranks that share experts, and for errors in the file.
    """
    plan = _apart(deployment, "--faults", "cannot fail separately")
    config = deployment.config
    faults = drawn_faults(read_faults(file), config.replicas, deployment.seed, has_links=config.passes_on)
    return replace(deployment, plan=replace(plan, faults=faults))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingTerms:
    """Terms of autoscaling: when the scaler is called, the initial replicas, and their start time."""

    least: int = 1
    every_s: float = 15.0
    start_s: float = 60.0


def scaling(deployment: Simulated, scalers: Mapping[Role | None, Scaler], terms: ScalingTerms) -> Simulated:
    """Return the deployment with a scaler for each pool, by role; the key None is for all other pools.

    Raises ConfigError for ranks that share experts, a role without a pool, and more replicas than there are.
    """
    plan = _apart(deployment, "--scaler", "cannot scale separately")
    role_of = {each.pool: each.role for each in plan.engines} if deployment.config.pools else {}
    roles = sorted({*role_of.values()})
    for role in scalers:
        if role is not None and role not in roles:
            known = f"the pools are {', '.join(roles)}" if roles else "no --pool is given"
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


def moving(deployment: Simulated, link: LinkRate) -> Simulated:
    """Return the deployment with links, over which engines pass requests to others of their role.

    Raises ConfigError for ranks that share experts, and if the bytes of a token's KV are unknown.
    """
    plan = _apart(deployment, "--router", "pass no requests on")
    if not deployment.kv_token_bytes:
        raise ConfigError(
            "--router moves requests: give a --gpu and a --model, which determine the bytes of a token's KV"
        )
    rate = link.tokens_per_s(deployment.kv_token_bytes)
    engines = tuple(
        each if each.tokens_per_s < inf else replace(each, tokens_per_s=rate) for each in plan.engines
    )
    plan = replace(plan, engines=engines, link_latency_s=link.latency_s, moves=True)
    return replace(deployment, plan=plan)


def _apart(deployment: Simulated, option: str, cannot: str) -> FleetPlan:
    """Return the plan of the fleet; raises ConfigError if its engines step together."""
    if (plan := deployment.fleet_plan).has_ranks_in_step:
        raise ConfigError(f"{option}: ranks that share experts step together and {cannot}")
    return plan
