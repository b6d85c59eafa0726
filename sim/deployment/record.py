"""Record of a simulated deployment: everything needed to build its graph."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from sundog.actors.config import ConfigError, EngineConfig
from sundog.actors.core.records import dataclass
from sundog.actors.messages import Capacity
from sundog.sim.cost.composed import scaled
from sundog.sim.cost.doubt import FRONT_END_DOUBT, step_doubt
from sundog.sim.cost.work import CostModel
from sundog.sim.figures.totals import RunTerms

if TYPE_CHECKING:
    from sundog.sim.fleet.plan import FleetPlan
    from sundog.sim.replay import Furnish

MOST_BLOCKS_OF_ALL = 2**25
"""Most blocks of all replicas together, 140 bytes each: 4.7 GB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """Simulated deployment: its graph's configuration, the cost of steps, and its capacity."""

    config: EngineConfig
    cost: CostModel
    """Cost of a step, including any scaling."""
    kernels: tuple[CostModel, ...]
    """Unscaled costs of each pool, which record how far outside the measurements they were used."""
    capacity: Capacity
    power_w: float | None
    """Power of a GPU in watts; None if unknown."""
    num_gpus: int
    model: str
    kv_token_bytes: int
    """Bytes of keys and values per token on a rank; 0 if only times were measured."""
    machine: str
    """Name of the machine, for titles."""
    front_end_s: float = 0.0
    """Seconds that a request spends after its engine; `config.front` has those before."""
    seed: int = 0
    """Seed of random events in the fleet: crashes, losses, clients that leave."""
    priced: tuple[str, ...] = ()
    """Remarks on step costs that were not measured; they are stored with the results."""
    remarks: tuple[str, ...] = ()
    """Remarks of `priced`, and further warnings for people."""
    plan: "FleetPlan | None" = None
    """Plan of a fleet with engines that differ, or fail; None otherwise."""

    @property
    def furnish(self) -> "Furnish | None":
        """Function that makes the engines of such a fleet; None for equal ones that never fail."""
        return None if self.plan is None else self.plan.furnish

    @property
    def fleet_plan(self) -> "FleetPlan":
        """Plan of the fleet; by default one of equal engines."""
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
        return FleetPlan((member,) * num_replicas, seed=self.seed)

    @property
    def doubt(self) -> float:
        """Relative error of step times: of all sizes before a run, of the sizes that were used
        after it.
        """
        return max(map(step_doubt, self.kernels))

    def doubted(self) -> Iterator["Simulated"]:
        """Yield the deployment with the shortest and longest likely steps and latencies."""
        doubt = self.doubt
        for side in (-1, 1):
            yield self.doubted_by(doubt, side)

    def doubted_by(self, doubt: float, side: float) -> "Simulated":
        """Return the deployment with steps 1 + `doubt` times as long; shorter by the same factor if `side` is
        -1.
        """
        factor, front_end = (1 + doubt) ** side, 1 + side * FRONT_END_DOUBT
        return replace(
            self,
            config=replace(self.config, front=self.config.front.times(front_end)),
            cost=scaled(self.cost, factor),
            front_end_s=front_end * self.front_end_s,
            plan=None if self.plan is None else self.plan.scaled(factor),
        )

    def terms(self, asked: RunTerms) -> RunTerms:
        """Return the terms of a run: the requested ones, and those of this deployment."""
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
