"""vLLM's balancer of data-parallel ranks: by hand, and against its two classes over random loads."""

import random
import sys

import pytest

from sundog.actors.core.routers import Fleet
from sundog.actors.core.routers.fleet_state import HEARTBEAT_S, FleetState, Published
from sundog.actors.core.routers.prefix_index import new_index
from sundog.actors.core.routers.rules import DataParallel
from tests.core.requests import submit
from tests.core.traces import num_cases


class Ranks:
    """Ranks that report what a test says, behind one Router."""

    def __init__(self, count: int, rule: str = "kv", num_routers: int = 1, router_number: int = 0) -> None:
        self.policy = DataParallel(rule=rule)
        self.state = FleetState(new_index("none"), 0, Published(self.policy.stale_s))
        for _ in range(count):
            self.state.add(100, 16)
        self.state.num_routers, self.state.router_number = num_routers, router_number
        self.fleet = Fleet(self.state, self.policy.new_memory())
        self.num_sent = 0

    def report(self, time_s: float, replica: int, waiting: int, running: int, usage: float) -> None:
        assert self.state.published is not None
        self.state.published.note(time_s, replica, waiting, running, usage)

    def route(self, time_s: float) -> int:
        """Send one more request."""
        self.num_sent += 1
        request = submit(f"r{self.num_sent}")
        self.state.begin(time_s)
        replica = self.policy.choose(request, self.fleet)
        self.state.send(request, replica)
        return replica

    def end(self, number: int) -> None:
        self.state.end(f"r{number}")


def test_a_burst_between_two_publications_goes_to_each_rank_in_turn() -> None:
    """What was sent counts as waiting, and as in flight: 1, 2, 3, 4 and again."""
    ranks = Ranks(4)
    assert [ranks.route(0.01) for _ in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]


def test_counts_are_those_that_were_published_and_at_most_100_ms_old() -> None:
    """Published at 1.0 s; what changes at 1.02 s is seen from 1.1 s on."""
    ranks = Ranks(2)
    ranks.report(1.0, 0, 0, 5, 0.1)
    ranks.state.begin(1.0)
    assert ranks.fleet.published(0) == (0, 5, 0.1)
    ranks.report(1.02, 0, 0, 1, 0.1)
    ranks.report(1.05, 1, 0, 9, 0.1)
    ranks.state.begin(1.09)
    assert (ranks.fleet.published(0), ranks.fleet.published(1)) == ((0, 5, 0.1), (0, 0, 0.0))
    ranks.state.begin(1.1)
    assert (ranks.fleet.published(0), ranks.fleet.published(1)) == ((0, 1, 0.1), (0, 9, 0.1))


def test_waiting_requests_count_for_more_the_fuller_the_cache_is() -> None:
    """By hand, rule kv: 2 + 4 = 6 and 2 x 6 x (0.75 - 0.5) = 3 more, against 8; counts: 12 against 8."""
    for rule, usage, chosen in [("kv", 0.4, 0), ("kv", 0.75, 1), ("counts", 0.4, 1)]:
        ranks = Ranks(2, rule)
        ranks.report(1.0, 0, 2, 4, usage)
        ranks.report(1.0, 1, 0, 8, 0.9)
        ranks.state.begin(1.1)
        assert ranks.route(1.2) == chosen, (rule, usage)


class Coordinator:
    """vLLM 0.33's DPCoordinatorProc: it polls for 100 ms after a change, else for 5 s; in microseconds."""

    def __init__(self, count: int) -> None:
        self.engines = [[0, 0, 0.0] for _ in range(count)]
        self.changed_us: int | None = None
        self.last_publish_us = -100_000
        self.published = [list(each) for each in self.engines]
        self.number = 0

    def advance(self, now_us: int) -> None:
        """Let its poll time out as often as it does until now."""
        while True:
            wait_us = 5_000_000 if self.changed_us is None else 100_000
            due_us = max(self.last_publish_us + wait_us, self.changed_us or -(10**9))
            if due_us > now_us:
                return
            self.published = [list(each) for each in self.engines]
            self.number += 1
            self.changed_us, self.last_publish_us = None, due_us


class FrontEnd:
    """vLLM 0.33's DPLBAsyncMPClient.get_core_engine_for_request, and 0.26's."""

    def __init__(self, count: int, rule: str, client_count: int, client_index: int) -> None:
        self.lb_engines: list[list[float]] = [[0, 0, 0.0] for _ in range(count)]
        self.engine_inflight = [0] * count
        self.rule, self.client_count = rule, client_count
        self.eng_start_index = count * client_index // client_count

    def choose(self) -> int:
        num_engines, min_score, eng_index = len(self.lb_engines), float(sys.maxsize), 0
        for i in range(num_engines):
            idx = (self.eng_start_index + i) % num_engines
            waiting, running, kv_cache_usage = self.lb_engines[idx]
            if self.rule == "counts":
                score = waiting * 4 + running
            else:
                score = max(self.client_count * self.engine_inflight[idx], waiting + running)
                if waiting:
                    score += waiting * 6.0 * max(0.0, kv_cache_usage - 0.5)
            if score < min_score:
                min_score, eng_index = score, idx
        self.lb_engines[eng_index][0] += self.client_count
        self.eng_start_index = (self.eng_start_index + 1) % num_engines
        self.engine_inflight[eng_index] += 1
        return eng_index


@pytest.mark.parametrize("rule", ["kv", "counts"])
def test_every_choice_is_that_of_vllms_front_end_and_coordinator(rule: str) -> None:
    """Random reports, requests and ends in milliseconds."""
    for seed in range(num_cases(100)):
        rng = random.Random(seed)
        count, clients = rng.choice([2, 4, 8]), rng.choice([1, 1, 4])
        index = rng.randrange(clients)
        ranks, coordinator = Ranks(count, rule, clients, index), Coordinator(count)
        front, seen, sent = FrontEnd(count, rule, clients, index), 0, list[tuple[int, int]]()
        now_us = 0
        for _ in range(150):
            now_us += rng.choice([0, rng.randrange(2_000), rng.randrange(150_000), rng.randrange(12_000_000)])
            coordinator.advance(now_us)
            match rng.choice(["report", "route", "route", "end"]):
                case "report":
                    rank = rng.randrange(count)
                    counts = (rng.randrange(4), rng.randrange(6), rng.choice([0.2, 0.7, 0.95]))
                    ranks.report(now_us / 1e6, rank, *counts)
                    if [*counts[:2]] != coordinator.engines[rank][:2]:
                        coordinator.engines[rank] = [*counts]
                        coordinator.changed_us = coordinator.changed_us or now_us
                        coordinator.advance(now_us)
                case "route":
                    if coordinator.number != seen:
                        seen = coordinator.number
                        front.lb_engines = [list(each) for each in coordinator.published]
                    chosen = front.choose()
                    assert ranks.route(now_us / 1e6) == chosen, (seed, now_us)
                    sent.append((ranks.num_sent, chosen))
                case _:
                    if sent:
                        number, chosen = sent.pop(rng.randrange(len(sent)))
                        ranks.end(number)
                        front.engine_inflight[chosen] -= 1


def test_a_state_that_does_not_change_is_published_again_at_its_heartbeat() -> None:
    """And what was sent since then does not count as waiting any longer, as in vLLM."""
    published = Published(0.1)
    published.add()
    published.note(1.0, 0, 1, 1, 0.5)
    number = published.number
    published.until(1.0 + HEARTBEAT_S - 0.001)
    assert published.number == number
    published.until(1.0 + 3 * HEARTBEAT_S + 0.5)
    assert published.number == number + 1 and published.counts == [(1, 1, 0.5)]
    published.note(1.0 + 3 * HEARTBEAT_S + 0.6, 0, 2, 2, 0.5)
    assert published.counts == [(2, 2, 0.5)]


def test_a_rank_that_is_down_is_passed_over() -> None:
    """The first to be looked at turns all the same: ranks 0, 1 (down), 2, then 0 again, each with fewer."""
    ranks = Ranks(3)
    ranks.state.lose(1)
    assert [ranks.route(0.0) for _ in range(4)] == [0, 2, 2, 0]
    with pytest.raises(ValueError, match="rule is 'x': known are kv, counts"):
        DataParallel(rule="x")
