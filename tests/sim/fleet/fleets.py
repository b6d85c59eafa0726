"""Small fleets for tests: engines with a simple cost, and random requests that overfill their caches."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar

from sundog.actors.config import EngineConfig, SchedulerConfig
from sundog.actors.config.pools import EnginePool
from sundog.actors.core.routers import Fleet, RouterPolicy, Unfinished
from sundog.actors.core.routers.fleet_state import Role
from sundog.actors.messages import Capacity
from sundog.sim.cost.composed import InStep
from sundog.sim.fleet.plan import FleetPlan, PlannedEngine
from sundog.sim.record.recorder import Recorder
from sundog.sim.replay import replay
from sundog.sim.trace.record import TraceRequest
from tests.sim.toy import COST

BLOCK = 16
CONTEXT = 320
BLOCKS = 48
"""Two and a half requests of the full context."""


@dataclass(frozen=True)
class Restless(RouterPolicy):
    """Moves requests of any state to any replica, again and again."""

    moves_every_s: ClassVar[float] = 0.0
    share: float = 0.3

    def moves(self, fleet: Fleet) -> Iterator[tuple[Unfinished, int]]:
        now = str(fleet.now_s)
        for source in fleet.up:
            others = [replica for replica in fleet.up if replica != source]
            for each in fleet.requests(source) if others else ():
                if fleet.random(each.request, now) < self.share:
                    yield each, others[int(fleet.random(each.request, "to", now) * len(others))]


def moving(
    roles: Sequence[Role] = ("both", "both", "both"), router: RouterPolicy | None = None, **fields: Any
) -> tuple[EngineConfig, FleetPlan]:
    """A fleet whose router moves requests, over slow links."""
    given: dict[str, Any] = {"rate": 3000.0, "latency_s": 0.001, "router": router or Restless()} | fields
    config, plan = fleet(roles, **given)
    return config, replace(plan, moves=True)


def wide(roles: Sequence[Role], num_ranks: int = 2, **fields: Any) -> tuple[EngineConfig, FleetPlan]:
    """A fleet in which each role is a group of ranks in step."""
    config, plan = fleet([role for role in roles for _ in range(num_ranks)], **fields)
    engines = tuple(replace(engine, cost=InStep(COST, num_ranks)) for engine in plan.engines)
    return config, replace(plan, engines=engines)


def limits(**fields: Any) -> SchedulerConfig:
    own = {"max_model_len": CONTEXT, "max_num_seqs": 8, "max_num_batched_tokens": 64, "block_size": BLOCK}
    return SchedulerConfig(**(own | fields))


def fleet(
    roles: Sequence[Role] = ("prefill", "prefill", "decode", "decode"),
    *,
    rate: float = inf,
    latency_s: float = 0.0,
    num_blocks: int = BLOCKS,
    scheduler: SchedulerConfig | None = None,
    **fields: Any,
) -> tuple[EngineConfig, FleetPlan]:
    """A configuration and its plan, a pool for each replica."""
    scheduler = scheduler or limits()
    pools = tuple(EnginePool(role, 1, scheduler) for role in roles)
    engines = tuple(
        PlannedEngine(f"{role}-{n}", role, COST, Capacity(num_blocks, BLOCK), 1, rate)
        for n, role in enumerate(roles)
    )
    own: dict[str, Any] = {"decode_runs": True, "debug": True} | fields
    config = EngineConfig(scheduler, replicas=len(roles), pools=pools, **own)
    return config, FleetPlan(engines, latency_s)


def played(rows: Sequence[TraceRequest], config: EngineConfig, plan: FleetPlan, **options: Any) -> Recorder:
    """The rows on the fleet."""
    capacity = plan.engines[0].capacity
    return replay(rows, config, COST, capacity, furnish=plan.furnish, **options)


def crowd(seed: int, num_requests: int = 60, per_s: float = 200.0) -> list[TraceRequest]:
    """Requests of all lengths, some of which begin alike, faster than they can be served."""
    rng, time_s, rows = random.Random(seed), 0.0, []
    for number in range(num_requests):
        time_s += rng.expovariate(per_s)
        num_prompt = rng.randint(1, CONTEXT - 60)
        family = rng.randrange(4)
        ids = tuple(family * 1000 + index for index in range(num_prompt // BLOCK)) if family else None
        row = TraceRequest(f"r{number}", time_s, num_prompt, rng.randint(1, 50), hash_ids=ids)
        rows.append(row if ids is None else row._replace(hash_block_tokens=BLOCK))
    return rows


def with_witness(rows: Sequence[TraceRequest], after_s: float = 1e4) -> list[TraceRequest]:
    """The rows, and long after them requests that can only be served if every block is free again."""
    whole = CONTEXT - 2
    last = [
        TraceRequest(f"last-{turn}-{number}", after_s + turn * 1e3, whole, 2)
        for turn in range(2)
        for number in range(8)
    ]
    return [*rows, *last]
