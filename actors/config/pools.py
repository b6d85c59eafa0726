"""Pools of engines in one fleet: their roles, and the limits of their schedulers."""

from collections.abc import Sequence

from sundog.actors.core.config import ConfigError, SchedulerConfig
from sundog.actors.core.records import dataclass
from sundog.actors.core.routers.fleet_state import Role


@dataclass(frozen=True, slots=True)
class EnginePool:
    """Equal engines with one role: `both` compute whole requests, `prefill` prompts, `decode` answers."""

    role: Role
    replicas: int
    scheduler: SchedulerConfig


def check_pools(pools: Sequence[EnginePool]) -> None:
    """Raise ConfigError for pools that cannot serve a request together."""
    roles = {pool.role for pool in pools}
    if roles not in ({"both"}, {"prefill", "decode"}):
        raise ConfigError(
            f"the pools are for {', '.join(sorted(roles))}: give prefill and decode, or both alone"
        )
    if len({pool.scheduler.block_size for pool in pools}) > 1:
        raise ConfigError("pools have blocks of different sizes: give one --block-size")
