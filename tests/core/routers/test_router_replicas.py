"""Several Routers in front of the same replicas: each counts only its own requests."""

import random
from collections import Counter

import pytest

from sundog.actors.config import ConfigError, EngineConfig
from sundog.actors.core.routers import ROUTERS
from sundog.actors.core.routers.fleet_state import SharedState
from sundog.actors.core.routers.prefix_index import new_index
from sundog.actors.core.routers.rules import LeastRequests
from sundog.sim.replay import replay
from sundog.sim.trace.record import TraceRequest
from tests import warm
from tests.core.requests import submit
from tests.core.traces import num_cases
from tests.sim.fleet.fleets import crowd, fleet, limits
from tests.sim.toy import CAPACITY, COST
from tests.test_layers import ROOT


def test_the_views_are_parts_of_the_whole() -> None:
    """Whatever is sent, ends, is lost or drained: their requests add up, and what is up is the same."""
    for seed in range(num_cases(50)):
        rng, num_routers = random.Random(seed), random.Random(seed).choice([2, 3, 5])
        state = SharedState(new_index("own"), seed, 0.0, num_routers)
        for _ in range(4):
            state.add(100, 16)
        alive, routers = set[str](), list[int]()
        for number in range(100):
            name = f"r{number}"
            state.begin(float(number))
            if up := state.up_for["both"]:
                routers.append(state.router_of((name,)))
                state.send(submit(name), rng.choice(up))
                alive.add(name)
            for other in sorted(alive):
                if rng.random() < 0.2:
                    state.end(other)
                    state.forget(other)
                    alive.discard(other)
            if rng.random() < 0.1:
                alive -= set(state.lose(rng.randrange(4)))
            elif rng.random() < 0.3:
                state.regain(rng.randrange(4))
            if rng.random() < 0.2:
                state.drain(rng.randrange(4), rng.random() < 0.4)
            sums = [sum(view.num_requests[each] for view in state.views) for each in range(4)]
            assert sums == state.num_requests and sum(sums) == len(alive)
            assert all(view.up_for == state.up_for for view in state.views)
        assert routers == [place % num_routers for place in range(len(routers))]


def chosen(num_routers: int, name: str = "least-requests") -> list[int]:
    """The replicas of eight requests that come at once, to two replicas."""
    router = LeastRequests() if name == "least-requests" else ROUTERS[name]()
    config = EngineConfig(limits(), replicas=2, router=router, router_replicas=num_routers)
    rows = [TraceRequest(f"r{number}", 0.001 * number, 40, 50) for number in range(8)]
    return [*replay(rows, config, COST, CAPACITY).columns.replica]


def test_two_routers_do_not_know_of_each_others_requests() -> None:
    """By hand: each sends its first to replica 0 and its second to replica 1.

    vLLM's front-ends begin at their share of the ranks: 2 x 0 // 2 and 2 x 1 // 2.
    """
    assert chosen(1) == [0, 1, 0, 1, 0, 1, 0, 1]
    assert chosen(2) == [0, 0, 1, 1, 0, 0, 1, 1]
    assert chosen(4) == [0, 0, 0, 0, 1, 1, 1, 1]
    assert chosen(2, "data-parallel")[:4] == [0, 1, 1, 0]


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("name", [name for name in ROUTERS if name != "weighted"])
@pytest.mark.parametrize("roles", [("both",) * 3, ("prefill", "decode", "decode")])
def test_every_router_serves_every_request_as_one_of_several(name: str, roles: tuple[str, ...]) -> None:
    for seed in range(num_cases(2)):
        config, plan = fleet(roles, rate=1e5, router=ROUTERS[name](), router_replicas=3, seed=seed)  # type: ignore[arg-type]
        rows = crowd(seed)
        recorder = replay(rows, config, COST, plan.engines[0].capacity, furnish=plan.furnish)
        assert Counter(recorder.columns.reason) == {"stop": len(rows)}


def test_routers_that_move_requests_are_alone() -> None:
    """Refused by name, by the command as well."""
    with pytest.raises(ConfigError, match="router_replicas is 0"):
        EngineConfig(limits(), router_replicas=0)
    trace = ROOT / "traces/chat-poisson-2rps-5min.jsonl.gz"
    moving = ("--router", str(ROOT / "docs/routers/llumnix.py:Llumnix"), "--replicas", "2")
    done = warm.run("sundog", "replay", str(trace), "--limit", "9", *moving, "--router-replicas", "2")
    assert done.returncode == 2 and "router_replicas is 2, and Llumnix moves requests" in done.stderr
    done = warm.run("sundog", "replay", str(trace), "--limit", "9", "-dp", "2", "--router-replicas", "2")
    assert done.returncode == 0, done.stderr
