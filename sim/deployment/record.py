"""What is simulated: the parts from which a deployment's graph is built."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sundog.actors.config import ConfigError, EngineConfig
from sundog.actors.messages import Capacity
from sundog.sim.cost.composed import scaled
from sundog.sim.cost.doubt import FRONT_END_DOUBT, step_doubt
from sundog.sim.cost.work import CostModel
from sundog.sim.figures.totals import RunTerms

if TYPE_CHECKING:
    from sundog.sim.fleet.plan import FleetPlan
    from sundog.sim.replay import Furnish

MOST_BLOCKS_OF_ALL = 2**25
"""The pools of all replicas together take 140 bytes a block: 4.7 GB at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """A simulated deployment: its graph's configuration, the cost of steps, and its capacity."""

    config: EngineConfig
    cost: CostModel
    """The cost of a step, whatever it is scaled by included."""
    kernels: tuple[CostModel, ...]
    """The unscaled costs of each pool: they know how far they were asked outside what was measured."""
    capacity: Capacity
    power_w: float | None
    """The power of a GPU; None if it is unknown."""
    front_end_s: float
    """The seconds that a request takes before and behind its engine."""
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
        """The maker of the engines of a fleet that are not all alike, or fail."""
        return None if self.plan is None else self.plan.furnish

    @property
    def fleet_plan(self) -> "FleetPlan":
        """The plan of the fleet; one of equal engines where there is none yet."""
        from sundog.sim.fleet.plan import FleetPlan, PlannedEngine

        if self.plan is not None:
            return self.plan
        num_replicas = self.config.replicas
        member = PlannedEngine(
            self.machine,
            "both",
            cost=self.cost,
            capacity=self.capacity,
            num_gpus=self.num_gpus // num_replicas,
        )
        return FleetPlan((member,) * num_replicas)

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

    def terms(self, asked: RunTerms) -> RunTerms:
        """Return the terms of a run: what is asked of it, and what this deployment has."""
        scheduler = self.config.scheduler
        return replace(
            asked,
            num_gpus=self.num_gpus,
            max_num_running=self.config.replicas * scheduler.max_num_running,
            block_size=scheduler.block_size,
            gpu_power_w=self.power_w,
        )


def check_memory(replicas: int, num_blocks: int) -> None:
    """Raise ConfigError for more blocks than can be simulated at once."""
    if replicas * num_blocks > MOST_BLOCKS_OF_ALL:
        raise ConfigError(
            f"{num_blocks:,} KV blocks in each of {replicas:,} replicas are more than can be simulated at"
            f" once ({MOST_BLOCKS_OF_ALL:,} in all): give fewer --replicas, or --num-gpu-blocks of at most"
            f" {MOST_BLOCKS_OF_ALL // replicas}"
        )
