"""A fleet whose engines are not all alike, as a replay needs it: its backends, and what is between them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from actors.core.routers.fleet_state import Role
from actors.engine.backend import Backend
from actors.messages import Capacity
from sim.backend import Pace, TokenSource
from sim.cost.work import CostModel
from sim.fleet.figures import FleetFigures, PoolFigures, TransferFigures
from sim.fleet.links import KvLinks
from sim.oracle import Oracle
from sim.pipelined import cost_backend
from sim.record.recorder import Recorder
from sim.replay import Surroundings


@dataclass(frozen=True, slots=True)
class PlannedEngine:
    """An engine of a fleet; its ranks together send, and receive, `tokens_per_s` tokens of KV a second."""

    pool: str
    role: Role
    cost: CostModel
    capacity: Capacity
    num_gpus: int
    tokens_per_s: float = inf


class FleetLedger:
    """Sums up what a run of a fleet knows beside its Recorder, when it is over."""

    def __init__(self, engines: Sequence[PlannedEngine], links: KvLinks | None) -> None:
        self._engines, self._links = engines, links

    def figures(self, recorder: Recorder) -> FleetFigures:
        """Return the figures of the pools and of what went between them. O(transfers)"""
        end_s = max(steps.last_end_s for steps in recorder.steps)
        begin_s = min(recorder.columns.arrival_s, default=0.0)
        names = dict.fromkeys(engine.pool for engine in self._engines)
        pools = tuple(self._pool(name, recorder, max(end_s - begin_s, 0.0)) for name in names)
        return FleetFigures(pools, None if self._links is None else _transfers(self._links))

    def _pool(self, name: str, recorder: Recorder, span_s: float) -> PoolFigures:
        members = [number for number, engine in enumerate(self._engines) if engine.pool == name]
        first = self._engines[members[0]]
        num_blocks = first.capacity.num_blocks - 1
        busy_s = sum(recorder.steps[number].busy_s for number in members)
        return PoolFigures(
            name,
            first.role,
            len(members),
            sum(self._engines[number].num_gpus for number in members),
            num_blocks,
            busy_s / (span_s * len(members)) if span_s else 0.0,
            max(recorder.kv_use[number].max_blocks for number in members) / num_blocks,
        )


def _transfers(links: KvLinks) -> TransferFigures:
    seconds = np.array([moved.end_s - moved.begin_s for moved in links.moved])
    if not len(seconds):
        return TransferFigures(0, 0, 0.0, 0.0)
    num_tokens = sum(moved.num_tokens for moved in links.moved)
    return TransferFigures(len(seconds), num_tokens, float(seconds.mean()), float(np.quantile(seconds, 0.99)))


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """The engines of a fleet by replica, and the latency of the links between them."""

    engines: tuple[PlannedEngine, ...]
    link_latency_s: float = 0.0

    def furnish(self, source: Callable[[], TokenSource]) -> tuple[list[Backend], Surroundings]:
        """Return new backends, one a replica, and what else the run has; `source` makes those of tokens."""
        backends: list[Backend] = []
        for replica, engine in enumerate(self.engines):
            # A prompt alone has no end token: its engine hands it over with the first.
            tokens = Oracle() if engine.role == "prefill" else source()
            backends.append(cost_backend(Pace(engine.cost, f"runner-{replica}"), tokens, engine.capacity))
        links = None
        if any(engine.role == "prefill" for engine in self.engines):
            links = KvLinks([engine.tokens_per_s for engine in self.engines], self.link_latency_s)
        return backends, Surroundings(
            links=links,
            own_blocks=[engine.capacity.num_blocks for engine in self.engines],
            ledger=FleetLedger(self.engines, links),
        )
