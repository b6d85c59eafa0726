"""Fair share by virtual token counters: the paper's bound, its lift, and exact counting."""

import random
from collections import deque
from itertools import combinations

import pytest

from sundog.actors.core.batch import Batch, StepResult
from sundog.actors.core.queue.lockstep import Lockstep
from sundog.actors.core.queue.tenant_service import TenantService
from sundog.actors.core.request import Request, Submit
from sundog.actors.core.step.plan import plan
from sundog.actors.core.step.update import update
from tests.core.drive import Driven
from tests.core.policies.world import World, policy_trace
from tests.core.traces import num_cases

INPUT_WEIGHT, OUTPUT_WEIGHT = 1, 2


def gap_bound(longest_prompt: int, num_cache_tokens: int) -> int:
    """Twice U of lemma 4.3: theorem 4.4 of the paper."""
    return 2 * max(INPUT_WEIGHT * longest_prompt, OUTPUT_WEIGHT * num_cache_tokens)


SHAPES = {"small": (1, 8, 10), "wordy": (1, 30, 60), "reader": (40, 60, 5)}
"""Tenants: shortest and longest prompt, longest answer."""


def given(world: World, services: dict[str, int]) -> None:
    """Do a step, and add up what the tenants were given in it, recounted from the outside."""
    view, requests = world.state.view, dict(world.state.requests)
    before = {name: view.num_output_tokens(request) for name, request in requests.items()}
    for admission in world.step().admitted:
        if not admission.resumed:
            tenant = requests[admission.request_id].submit.tenant
            services[tenant] += INPUT_WEIGHT * admission.num_prompt_tokens
    for name, request in requests.items():
        new = view.num_output_tokens(request) - before[name]
        services[request.submit.tenant] += OUTPUT_WEIGHT * new


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("seed", range(num_cases(6)))
def test_the_service_gap_of_backlogged_tenants_is_within_the_papers_bound(seed: int) -> None:
    """Over every span of steps, through preemptions, whatever the lengths."""
    rng = random.Random(seed)
    limits = {"num_gpu_blocks": 33, "max_num_seqs": 6, "max_model_len": 100}
    world = World("vtc", {**limits, "enable_prefix_caching": False})
    services = dict.fromkeys(SHAPES, 0)
    differences = {pair: [] for pair in combinations(SHAPES, 2)}
    for number in range(600):
        waiting = [request.submit.tenant for request in world.state.waiting]
        for tenant, (least, most, output) in SHAPES.items():
            for copy in range(8 - waiting.count(tenant)):
                name, prompt = f"{tenant}-{number}-{copy}", rng.randint(least, most)
                world.add(name, prompt, rng.randint(1, output), tenant=tenant)
        given(world, services)
        for one, other in differences:
            differences[one, other].append(services[one] - services[other])
    assert world.preemptions, "blocks ran out"
    gaps = [max(values) - min(values) for values in differences.values()]
    assert min(services.values()) > 3 * gap_bound(60, 32 * 4), "the run is long enough"
    assert max(gaps) <= gap_bound(60, 32 * 4)


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_fcfs_breaks_that_bound() -> None:
    """The bound is worth something: in order of arrival a flood takes all."""
    world = World("fcfs", {"num_gpu_blocks": 33, "max_num_seqs": 6, "max_model_len": 100})
    for number in range(200):
        world.add(f"flood-{number}", 10, 10, tenant="flood")
    world.add("meek", 10, 10, tenant="meek")
    for _ in range(120):
        world.step()
    assert "meek" not in world.finished


def test_absence_earns_no_credit() -> None:
    """A tenant that comes back is lifted to the least served one that waits."""
    world = World("vtc", {"max_num_seqs": 1})
    world.add("early", 10, 1, tenant="absent")
    for number in range(30):
        world.add(f"busy-{number}", 10, 10, tenant="busy")
    for _ in range(100):
        world.step()
    service = world.state.view.service
    assert service("absent") == 12 and service("busy") > 200
    world.add("back", 10, 1, tenant="absent")
    assert service("absent") == service("busy")


def test_a_tenant_that_finds_nobody_waiting_is_lifted_to_the_one_that_left_last() -> None:
    """Otherwise an idle moment would erase what the others were given."""
    world = World("vtc", {"max_num_seqs": 1})
    world.add("first", 10, 40, tenant="busy")
    world.run()
    world.add("second", 10, 40, tenant="new")
    assert world.state.view.service("new") == world.state.view.service("busy") == 90


@pytest.mark.parametrize("lockstep", [True, False])
def test_counters_are_what_counting_token_by_token_gives(lockstep: bool) -> None:
    """Through preemptions and stops, in lockstep or not."""
    for seed in range(num_cases(30)):
        trace = policy_trace(seed, "vtc")
        trace["config"]["async_scheduling"] = False
        for row in trace["requests"]:
            row["tenant"] = "only"
        trace["events"] = []
        driven = Driven(trace, lockstep=lockstep)
        driven.run()
        prompts = sum(len(row["prompt"]) for row in trace["requests"])
        outputs = sum(_num_outputs(row, trace["config"]) for row in trace["requests"])
        assert driven.state.view.service("only") == prompts + 2 * outputs, f"seed {seed}"


@pytest.mark.parametrize("num_in_flight", [1, 2, 3, 5])
def test_counters_are_exact_while_steps_are_in_flight(num_in_flight: int) -> None:
    """After each plan and each update, of a request that joins the lockstep early, too."""
    num_compared = 0
    for seed in range(num_cases(20)):
        rng = random.Random(seed)
        limits = {"max_num_seqs": 5, "max_num_batched_tokens": rng.choice([6, 8, 16]), "num_gpu_blocks": 25}
        world = World("vtc", {"max_model_len": 60, **limits})
        state, requests, lifts = world.state, list[Request](), {"a": 0.0, "b": 0.0}
        admitted, in_flight = set[str](), deque[Batch]()
        for step in range(120):
            if rng.random() < 0.2 and len(requests) < 12:
                tenant, size, most = rng.choice("ab"), rng.randint(1, 30), rng.randint(1, 20)
                before = state.view.service(tenant)
                requests.append(world.add(f"r{step}", size, tenant=tenant, max_tokens=most))
                lifts[tenant] += state.view.service(tenant) - before
            in_flight.append(plan(state)[0])
            admitted |= {admission.request_id for admission in in_flight[-1].admitted}
            for is_updated in (False, True):
                if is_updated and len(in_flight) >= num_in_flight:
                    update(state, StepResult(in_flight.popleft().step, (0.0,), None, ()))
                counted = dict.fromkeys(lifts, 0)
                for request in requests:
                    prompt = request.submit.num_prompt_tokens * (request.request_id in admitted)
                    output = state.view.num_output_tokens(request)
                    counted[str(request.submit.tenant)] += INPUT_WEIGHT * prompt + OUTPUT_WEIGHT * output
                    num_compared += output > 0
                found = {tenant: state.view.service(tenant) - lift for tenant, lift in lifts.items()}
                assert found == counted, (seed, step)
    assert num_compared > 500


def _num_outputs(row: dict[str, list[int]], config: dict[str, int]) -> int:
    """How many tokens a request is given until it ends, by the rules of the trace."""
    limit = min(row["max_tokens"], config["max_model_len"] - len(row["prompt"]))
    for position in range(limit):
        token = row["outputs"][position] if position < len(row["outputs"]) else 3
        ends = token == config["eos_token_id"] and not row["ignore_eos"]
        if ends or token in row["stop_token_ids"]:
            return position + 1
    return limit


def test_a_tenant_that_was_served_more_than_all_who_wait_is_not_set_back() -> None:
    """Being lifted never lowers a counter: who was served 10 tokens comes behind one that was served none."""
    service = TenantService((1.0, 2.0), Lockstep(4))
    served, poor = (Request(Submit(n, 0.0, 10, 5, tenant=n), 64) for n in ("served", "poor"))
    service.enter(poor)
    service.enter(served)
    service.admit(served)
    service.leave(served)
    assert (service.of("served"), service.of("poor")) == (10.0, 0.0)
    service.enter(served)
    assert (service.of("served"), service.of("poor")) == (10.0, 0.0)
    service.sample(served)
    assert service.of("served") == 12.0


def test_a_tenant_that_comes_is_lifted_to_the_least_served_of_those_that_wait() -> None:
    """Not to the most served; nor is one that waits on lifted again."""
    service = TenantService((1.0, 2.0), Lockstep(4))
    for name, num_prompt_tokens in (("least", 4), ("most", 10)):
        first, second = (Request(Submit(n, 0.0, num_prompt_tokens, 5, tenant=name), 64) for n in "ab")
        service.enter(first)
        service.enter(second)
        service.admit(first)
        service.leave(first)
    assert (service.of("least"), service.of("most")) == (4.0, 4.0 + 10.0)
    service.enter(Request(Submit("new", 0.0, 1, 5, tenant="new"), 64))
    assert service.of("new") == 4.0
