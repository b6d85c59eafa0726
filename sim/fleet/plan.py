"""Fleet with unequal engines for a replay: its backends, and the links between them."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from operator import mul
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sundog.actors.core.records import dataclass
from sundog.actors.core.routers.fleet_state import Role
from sundog.actors.core.scalers import Attainment
from sundog.actors.engine.backend import Backend
from sundog.actors.engine.supervisor import Backoff, Supervision
from sundog.actors.fates import SIMULATED, Fate
from sundog.actors.messages import Capacity
from sundog.sim.backend import Pace, TokenSource
from sundog.sim.cost.composed import InStep, Pipeline, ScaledCost, scaled
from sundog.sim.cost.work import CostModel
from sundog.sim.fleet.alone import missed_alone
from sundog.sim.fleet.figures import (
    FaultFigures,
    FleetFigures,
    MissedAlone,
    MoveFigures,
    PoolFigures,
    PoolScalingFigures,
    ScalingFigures,
    TransferFigures,
)
from sundog.sim.fleet.links import KvLinks
from sundog.sim.fleet.scaling import Autoscaler, ScaledPool, Scaling
from sundog.sim.in_step import RankBackend, waves_of
from sundog.sim.oracle import Oracle
from sundog.sim.pipelined import cost_backend
from sundog.sim.record.columns import MovedColumns
from sundog.sim.record.recorder import Loss, Recorder
from sundog.sim.replay import Surroundings

if TYPE_CHECKING:
    from sundog.sim.fleet.faults import PlannedFault
    from sundog.sim.fleet.trouble import Trouble

RESTARTING = replace(SIMULATED, engine=Fate.RESTARTED)
AT_ONCE = Backoff(first_s=0.0, longest_s=0.0, most_crashes=10**9)
"""Delay before a crashed engine restarts: none, since the fault includes the time to start."""


@dataclass(frozen=True, slots=True)
class PlannedEngine:
    """Engine of a fleet; its ranks together send, and receive, `tokens_per_s` tokens of KV a second."""

    pool: str
    role: Role
    cost: CostModel
    capacity: Capacity
    num_gpus: int
    tokens_per_s: float = inf


class FleetLedger:
    """Additional account of a fleet's run, beside its Recorder."""

    def __init__(
        self,
        engines: Sequence[PlannedEngine],
        links: KvLinks | None,
        trouble: "Trouble | None" = None,
        scaler: Autoscaler | None = None,
    ) -> None:
        self._engines, self._links, self._trouble, self._scaler = engines, links, trouble, scaler

    def figures(self, recorder: Recorder) -> FleetFigures:
        """Return the figures of the pools and of transfers between them. O(transfers)"""
        end_s = max(steps.last_end_s for steps in recorder.steps)
        begin_s = min(recorder.first_arrival_s, end_s)
        names = dict.fromkeys(engine.pool for engine in self._engines)
        pools = tuple(self._pool(name, recorder, end_s - begin_s) for name in names)
        transfers = None if self._links is None else _transfers(self._links)
        faults = () if self._trouble is None else _befallen(self._trouble, recorder)
        scaling = None if self._scaler is None else self._scaled(self._scaler, recorder, (begin_s, end_s))
        moves = _moves(recorder.columns) if isinstance(recorder.columns, MovedColumns) else None
        return FleetFigures(pools, transfers, faults=faults, scaling=scaling, moves=moves)

    def _scaled(self, scaler: Autoscaler, recorder: Recorder, window: tuple[float, float]) -> ScalingFigures:
        span_s = window[1] - window[0]
        scaled = {number for pool in scaler.pools for number in pool.replicas}
        gpus = [engine.num_gpus for engine in self._engines]
        replica_s = [pool.seconds_between(*window) for pool in scaler.pools]
        always_s = [0.0 if number in scaled else span_s for number in range(len(gpus))]
        paid_s = sum(map(mul, gpus, always_s))
        paid_s += sum(
            gpus[min(pool.replicas)] * each for pool, each in zip(scaler.pools, replica_s, strict=True)
        )
        busy_s = sum(num_gpus * steps.busy_s for num_gpus, steps in zip(gpus, recorder.steps, strict=True))
        pools = [
            self._scaled_pool(pool, seconds, span_s)
            for pool, seconds in zip(scaler.pools, replica_s, strict=True)
            if pool.scaling.pool is not None
        ]
        return ScalingFigures(
            paid_s / 3600,
            busy_s / 3600,
            all_gpu_hours=span_s * sum(gpus) / 3600,
            mean_replicas=(sum(replica_s) + sum(always_s)) / span_s if span_s else 0.0,
            num_starts=sum(pool.num_starts for pool in scaler.pools),
            changes=tuple(scaler.changes),
            pools=tuple(pools),
            missed_alone=self._missed_alone(scaler),
        )

    def _missed_alone(self, autoscaler: Autoscaler) -> MissedAlone | None:
        for pool in autoscaler.pools:
            scaler, engine = pool.scaling.scaler, self._engines[min(pool.replicas)]
            if isinstance(scaler, Attainment) and engine.role != "decode":
                return missed_alone(engine.cost, autoscaler.watch.prompts, scaler.ttft_s)
        return None

    def _scaled_pool(self, pool: ScaledPool, replica_s: float, span_s: float) -> PoolScalingFigures:
        hours = self._engines[min(pool.replicas)].num_gpus / 3600
        name, all_s = pool.scaling.pool or "", span_s * len(pool.replicas)
        return PoolScalingFigures(
            name,
            replica_s * hours,
            all_gpu_hours=all_s * hours,
            num_starts=pool.num_starts,
            changes=tuple(pool.changes),
        )

    def _pool(self, name: str, recorder: Recorder, span_s: float) -> PoolFigures:
        members = [number for number, engine in enumerate(self._engines) if engine.pool == name]
        first = self._engines[members[0]]
        num_blocks = first.capacity.num_blocks - 1
        busy_s = sum(recorder.steps[number].busy_s for number in members)
        return PoolFigures(
            name,
            first.role,
            replicas=len(members),
            num_gpus=sum(self._engines[number].num_gpus for number in members),
            num_kv_blocks=num_blocks,
            busy_fraction=busy_s / (span_s * len(members)) if span_s else 0.0,
            kv_use_max=max(recorder.kv_use[number].max_blocks for number in members) / num_blocks,
        )


def _moves(columns: MovedColumns) -> MoveFigures:
    mean_s = columns.total_stopped_s / columns.num_whole if columns.num_whole else 0.0
    return MoveFigures(columns.num_all, columns.num_whole, mean_s)


def _befallen(trouble: "Trouble", recorder: Recorder) -> tuple[FaultFigures, ...]:
    losses: dict[tuple[int | None, float], Loss] = {
        (loss.replica, loss.time_s): loss for loss in recorder.losses
    }
    found = []
    for each in sorted(trouble.befallen, key=lambda each: each.at_s):
        replica = getattr(each.fault, "replica", None)
        loss = losses.get((replica, each.noticed_s)) if each.fault.kind == "dead-engine" else None
        found.append(
            FaultFigures(
                each.fault.kind,
                each.at_s,
                replica=replica,
                num_ended=0 if loss is None else loss.num_ended,
                num_again=0 if loss is None else loss.num_again,
                num_cancelled=each.num_cancelled,
            )
        )
    return tuple(found)


def _transfers(links: KvLinks) -> TransferFigures:
    seconds = np.array([moved.end_s - moved.begin_s for moved in links.moved])
    if not len(seconds):
        return TransferFigures(0, 0, 0.0, 0.0)
    num_tokens = sum(moved.num_tokens for moved in links.moved)
    return TransferFigures(len(seconds), num_tokens, float(seconds.mean()), quantile(seconds, 0.99))


def quantile(values: NDArray[np.float64], share: float) -> float:
    """Return a quantile with the bits of `np.quantile`, which would load numpy's masked arrays."""
    place = (len(values) - 1) * share
    below = int(place)
    part, ordered = place - below, np.sort(values)
    low, high = float(ordered[below]), float(ordered[min(below + 1, len(values) - 1)])
    if part < 0.5:
        return low + (high - low) * part
    return high - (high - low) * (1 - part)


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """Engines of a fleet by replica, the latency of the links between them, and the faults of a run."""

    engines: tuple[PlannedEngine, ...]
    link_latency_s: float = 0.0
    faults: "tuple[PlannedFault, ...]" = ()
    seed: int = 0
    scaling: tuple[Scaling, ...] = ()
    """Terms of the pools that scale, or of the whole fleet."""
    moves: bool = False
    """Whether requests may move between engines of the same role."""

    def scaled(self, factor: float) -> "FleetPlan":
        """Return the plan with every step `factor` times as long."""
        return replace(
            self, engines=tuple(replace(engine, cost=scaled(engine.cost, factor)) for engine in self.engines)
        )

    @property
    def has_ranks_in_step(self) -> bool:
        """Whether any engines share experts and step together."""
        return any(isinstance(engine.cost, InStep) for engine in self.engines)

    def autoscaler(
        self, on_change: Callable[[float, int, float], None] = lambda time_s, wanted, paid_s: None
    ) -> Autoscaler:
        """Return the driver of a run's numbers of replicas; there must be a `scaling`."""
        pools, roles = [each.pool for each in self.engines], [each.role for each in self.engines]
        return Autoscaler(self.scaling, pools, roles, on_change)

    def furnish(self, source: Callable[[], TokenSource]) -> tuple[list[Backend], Surroundings]:
        """Return new backends, one per replica, and the run's surroundings; `source` makes their tokens."""
        # A fault changes the factor of a replica's pace while the run goes on.
        paces = [ScaledCost(engine.cost, 1.0) for engine in self.engines] if self.faults else []
        waves = waves_of([engine.cost for engine in self.engines])

        def backend(replica: int) -> Backend:
            engine = self.engines[replica]
            # A prompt alone has no end token: its engine hands it over with the first.
            tokens = Oracle() if engine.role == "prefill" else source()
            if (wave := waves[replica]) is not None:
                return RankBackend(wave, replica, tokens, engine.capacity)
            cost = paces[replica] if paces and not isinstance(engine.cost, Pipeline) else engine.cost
            return cost_backend(Pace(cost, f"runner-{replica}"), tokens, engine.capacity)

        links = None
        if self.moves or any(engine.role == "prefill" for engine in self.engines):
            links = KvLinks([engine.tokens_per_s for engine in self.engines], self.link_latency_s)
        scaler = self.autoscaler() if self.scaling else None
        around = Surroundings(
            links=links,
            own_blocks=[engine.capacity.num_blocks for engine in self.engines],
            ledger=FleetLedger(self.engines, links, None, scaler),
            drivers=() if scaler is None else [lambda llm, client: scaler.drive(llm)],
            listeners=() if scaler is None else (scaler.watch,),
        )
        replicas = range(len(self.engines))
        if not self.faults:
            return [backend(replica) for replica in replicas], around
        # Not above: the tables of a faults file take pydantic, a third of the start of a replay of pools.
        from sundog.sim.fleet.faults import Retries, Spike, spiked
        from sundog.sim.fleet.trouble import Trouble

        trouble = Trouble(self.faults, self.seed, new_inner=backend, paces=paces, links=links)
        if links is not None:
            links.is_lost = trouble.is_lost
        spikes = [fault for fault in self.faults if isinstance(fault, Spike)]
        # A file may repeat itself: the last word counts.
        retries = [(fault.attempts, fault.wait_s) for fault in self.faults if isinstance(fault, Retries)]
        return [trouble.new_backend(replica) for replica in replicas], replace(
            around,
            ledger=FleetLedger(self.engines, links, trouble, scaler),
            supervision=Supervision(RESTARTING, trouble.new_backend, AT_ONCE, logging.DEBUG),
            drivers=[*around.drivers, trouble.drive],
            retries=retries[-1] if retries else None,
            reshape=partial(spiked, spikes=spikes, seed=self.seed) if spikes else iter,
        )
