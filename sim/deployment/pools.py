"""Several pools as one deployment: engines that compute prompts, engines that decode, or both."""

from collections.abc import Sequence
from dataclasses import replace

from sundog.actors.config import ConfigError
from sundog.actors.config.pools import EnginePool
from sundog.actors.core.records import dataclass
from sundog.actors.core.routers.fleet_state import Role
from sundog.sim.deployment.record import Simulated, check_memory
from sundog.sim.fleet.plan import FleetPlan, PlannedEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRate:
    """Speed of the links between engines: bytes per second, and seconds of latency."""

    bytes_per_s: float
    latency_s: float = 0.0

    def tokens_per_s(self, kv_token_bytes: int) -> float:
        """Return the tokens per second whose keys and values a link carries."""
        return self.bytes_per_s / kv_token_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPart:
    """Equal engines of a role; `engines` is the deployment that they would form alone."""

    name: str
    role: Role
    engines: Simulated

    @property
    def gpus_per_engine(self) -> int:
        """Number of GPUs of one engine."""
        return self.engines.num_gpus // self.engines.config.replicas


def pooled(pools: Sequence[PoolPart], link: LinkRate) -> Simulated:
    """Return the pools as one deployment, whose longest context is the shortest of theirs.

    Raises ConfigError for a pool with unknown bytes per token.
    """
    members = list[PlannedEngine]()
    for pool in pools:
        part = pool.engines
        if not part.kv_token_bytes:
            raise ConfigError(
                f"--pool {pool.name}: {part.machine} lacks the bytes of a token's KV: calibrate again"
            )
        rate = link.tokens_per_s(part.kv_token_bytes)
        member = PlannedEngine(
            pool.name,
            pool.role,
            cost=part.cost,
            capacity=part.capacity,
            num_gpus=pool.gpus_per_engine,
            tokens_per_s=rate,
        )
        members += [member] * part.config.replicas
    made = [pool.engines for pool in pools]
    last, configs = made[-1], [part.config for part in made]
    context = min(config.scheduler.max_model_len for config in configs)
    config = replace(
        last.config,
        replicas=len(members),
        scheduler=replace(last.config.scheduler, max_model_len=context),
        pools=tuple(
            EnginePool(pool.role, config.replicas, replace(config.scheduler, max_model_len=context))
            for pool, config in zip(pools, configs, strict=True)
        ),
    )
    check_memory(len(members), max(part.capacity.num_blocks for part in made))
    return replace(
        last,
        config=config,
        kernels=tuple(each for part in made for each in part.kernels),
        num_gpus=sum(part.num_gpus for part in made),
        power_w=_mean_power_w(made),
        machine=", ".join(pool.name for pool in pools),
        priced=tuple(dict.fromkeys(text for part in made for text in part.priced)),
        remarks=tuple(dict.fromkeys(text for part in made for text in part.remarks)),
        plan=FleetPlan(tuple(members), link.latency_s, seed=last.seed),
    )


def _mean_power_w(made: Sequence[Simulated]) -> float | None:
    """Return the mean power of the fleet's GPUs in watts; None if any is unknown."""
    if any(part.power_w is None for part in made):
        return None
    total_w = sum((part.power_w or 0.0) * part.num_gpus for part in made)
    return total_w / sum(part.num_gpus for part in made)
