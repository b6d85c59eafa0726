"""Requests moved between replicas by a router: costs, and invariants under any load."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import ClassVar

import pytest

from sundog.actors.core.policies.guard import PolicyError
from sundog.actors.core.routers import Fleet, RouterPolicy, Submit, Unfinished
from sundog.actors.core.routers.fleet_state import FleetState, Role
from sundog.actors.core.routers.guard import GuardedRouter
from sundog.actors.core.routers.prefix_index import new_index
from sundog.actors.core.routers.rules import LeastRequests
from sundog.actors.router.router import Router
from sundog.sim.figures.metrics import summarize
from sundog.sim.fleet.figures import FleetFigures
from sundog.sim.record.columns import MovedColumns
from sundog.sim.trace.record import TraceRequest
from tests.core.traces import num_cases
from tests.sim.fleet.fleets import BLOCK, Restless, crowd, fleet, limits, moving, played, with_witness


@dataclass(frozen=True)
class Once(RouterPolicy):
    """All go to replica 0; from `after_s` on what runs there (or waits) is moved to replica 1."""

    moves_every_s: ClassVar[float] = 0.0
    after_s: float = 0.05
    runs: bool = True

    def choose(self, request: object, fleet: Fleet) -> int:
        return fleet.up[0]

    def moves(self, fleet: Fleet) -> Iterable[tuple[Unfinished, int]]:
        if fleet.now_s < self.after_s or fleet.num_requests(1):
            return []
        return [(each, 1) for each in fleet.requests(0) if each.is_running == self.runs]


def moved(columns: object) -> MovedColumns:
    assert isinstance(columns, MovedColumns)
    return columns


def test_a_request_that_runs_stands_still_for_latency_and_whole_blocks_and_keeps_its_tokens() -> None:
    """It leaves when a step ends, its blocks are fetched by an idle replica, and its next step begins."""
    # The second request is there for its prompt, whose step is eventful: after it the router is asked.
    rows = [TraceRequest("long", 0.0, 50, 200), TraceRequest("later", 0.06, 20, 1)]
    config, plan = moving(("both", "both"), Once(), rate=1000.0, latency_s=0.25)
    recorder = played(rows, config, plan)
    columns, figures = moved(recorder.columns), summarize(recorder).fleet
    assert columns.reason == ["stop", "stop"] and list(columns.num_output_tokens) == [200, 1]
    assert list(columns.num_moves) == [1, 0] and columns.replica[0] == 1
    assert isinstance(figures, FleetFigures) and figures.transfers is not None and figures.moves is not None
    assert figures.transfers.num_tokens % BLOCK == 0 and figures.transfers.num_tokens > 50
    assert columns.stopped_s[0] == pytest.approx(0.25 + figures.transfers.num_tokens / 1000.0, abs=1e-9)
    assert figures.moves.num_with_kv == 1 and columns.recomputed_tokens[0] == 0


def test_what_waits_moves_for_free() -> None:
    """One that has no blocks begins at once where there is room; nothing goes over the links."""
    rows = [TraceRequest("runs", 0.0, 50, 100), TraceRequest("waits", 0.001, 50, 10)]
    config, plan = moving(("both", "both"), Once(0.0, runs=False), scheduler=limits(max_num_seqs=1))
    recorder = played(rows, config, plan)
    columns, figures = moved(recorder.columns), summarize(recorder).fleet
    assert list(columns.num_moves) == [0, 1] and list(columns.replica) == [0, 1]
    assert list(columns.stopped_s) == [0.0, 0.0] and columns.finish_s[1] < columns.finish_s[0]
    assert isinstance(figures, FleetFigures) and figures.transfers is not None
    assert figures.transfers.num_transfers == 0


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("roles", [("both", "both", "both"), ("prefill", "decode", "decode")], ids=["", "pd"])
def test_blocks_and_tokens_are_conserved_however_often_requests_move(
    roles: tuple[Role, ...], is_async: bool
) -> None:
    """Each ends once, whole; long afterwards requests are served that need every block of every engine."""
    for seed in range(num_cases(3)):
        config, plan = moving(roles, scheduler=limits(async_scheduling=is_async), seed=seed)
        rows = with_witness(crowd(seed))
        columns = moved(played(rows, config, plan).columns)
        assert columns.reason == ["stop"] * len(rows)
        assert list(columns.num_output_tokens) == [row.num_output_tokens for row in rows]
        assert columns.num_all > len(rows) and 0 < columns.num_whole < columns.num_all


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_clients_that_leave_free_what_they_held_while_it_moves() -> None:
    for seed in range(num_cases(4)):
        config, plan = moving(rate=300.0, latency_s=0.02, seed=seed)
        rows = with_witness(crowd(seed))
        columns = played(rows, config, plan, client_timeout_s=0.2).columns
        assert set(columns.reason[:-16]) == {"stop", "abort"}
        assert set(columns.reason[-16:]) <= {"stop", "abort"}
        again = played(rows, config, plan).columns
        assert again.reason == ["stop"] * len(rows)


def test_two_full_engines_that_send_each_other_requests_both_go_on() -> None:
    """Neither waits for the other's blocks: what finds no room goes back to its own."""
    rows = [TraceRequest(f"r{number}", 0.0, 150, 100) for number in range(12)]
    for seed in range(num_cases(4)):
        config, plan = moving(("both", "both"), Restless(0.9), rate=inf, latency_s=0.0, seed=seed)
        columns = moved(played(rows, config, plan).columns)
        assert columns.reason == ["stop"] * len(rows) and columns.num_whole > 0


def test_a_router_that_moves_nothing_is_told_of_no_step_and_adds_no_link() -> None:
    """A built-in one costs what it did; the figures of its fleets say nothing of moves."""
    assert not Router("router", LeastRequests()).follows_steps
    assert Router("router", Restless()).follows_steps
    config, plan = fleet(("both", "both"), router=LeastRequests())
    recorder = played(crowd(1), config, plan)
    assert not config.moves and not isinstance(recorder.columns, MovedColumns)
    assert '"moves"' not in summarize(recorder).to_json()


@dataclass(frozen=True)
class Wrong(RouterPolicy):
    """Makes a mistake of some kind."""

    moves_every_s: ClassVar[float] = 0.0
    kind: str = "nowhere"

    def moves(self, fleet: Fleet) -> Iterable[tuple[Unfinished, int]]:
        found = [each for replica in fleet.up for each in fleet.requests(replica)]
        if not found:
            return []
        here = found[0].replica
        wrong: dict[str, object] = {
            "nowhere": [(found[0], 7)],
            "here": [(found[0], here)],
            "twice": [(found[0], 1 - here), (found[0], 1 - here)],
            "name": [("r1", 1)],
            "stale": [(found[0]._replace(replica=1 - here), here)],
        }
        return wrong[self.kind]  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("nowhere", "it must be another that is up"),
        ("here", "it must be another that is up"),
        ("twice", "twice"),
        ("name", "give pairs of one of fleet.requests and a replica"),
        ("stale", "is not on replica"),
    ],
)
def test_a_wrong_move_is_one_line_that_names_the_router_and_the_way_out(kind: str, words: str) -> None:
    """It ends a simulation; a server goes on with round-robin."""
    state = FleetState(new_index("none"), 0)
    for _ in range(2):
        state.add(100, BLOCK)
    state.send(Submit("r0", 0.0, 9, 8), 0)
    guard = GuardedRouter(Wrong(kind), "Wrong")
    with pytest.raises(PolicyError, match=f"router Wrong: moves of the fleet .*{words}"):
        guard.moves(Fleet(state))
    guard.fallback = LeastRequests()
    assert guard.moves(Fleet(state)) == [] == guard.moves(Fleet(state)) and guard.failure is not None
