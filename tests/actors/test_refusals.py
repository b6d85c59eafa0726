"""A policy that refuses at admission, by every entry point: graph, HTTP, replay and `sundog schedule`."""

import gzip
import json
from pathlib import Path

import httpx
import pyarrow.parquet as pq
import pytest

from sundog.actors.core.batch import StepResult
from sundog.actors.core.request import Submit
from sundog.actors.core.routers.rules import LeastRequests
from sundog.actors.core.step.plan import plan
from sundog.actors.core.step.update import update
from sundog.actors.policy_file import find_policy
from sundog.sim.schedule.decision_log import DecisionLog
from sundog.sim.schedule.step_trace import parse_trace
from tests.actors.fakes import read
from tests.actors.test_policy_failures import replayed
from tests.actors.test_policy_file import written
from tests.core.policies.world import DOCS, World, policy_trace
from tests.core.traces import num_cases
from tests.core.work import has_work
from tests.live import EMULATED, Stream, live
from tests.sundog.test_runs import sundog
from tests.test_fates import ask, health, served

LIMIT = f"{DOCS}/rate_limit.py:RateLimit"
HEAD = "from sundog.actors.core.policies import Policy, Refusal, Request, View\n"
FULL = (
    "def refuse(self, request, view):\n"
    "        return Refusal('two wait already') if view.num_waiting >= 2 else None"
)


def test_a_tenant_is_held_to_its_rate_and_no_other() -> None:
    """What comes too soon is told when to come again; each tenant has its own turn."""
    world = World(f"{LIMIT}:per_minute=6")
    finishes = []
    for name, tenant, now_s in (("a0", "a", 0.0), ("a1", "a", 4.0), ("b0", "b", 4.0), ("a2", "a", 10.0)):
        world.state.view.advance(now_s)
        finishes.append(world.state.arrive(Submit(name, now_s, 4, 1, tenant=tenant)))
    refused = [finish for finish in finishes if finish is not None]
    assert [(f.request_id, f.reason, f.error, f.retry_after_s) for f in refused] == [
        ("a1", "refused", "more than 6 requests a minute", 6.0)
    ]
    assert [request.request_id for request in world.state.waiting] == ["a0", "b0", "a2"]
    world.state.check()


def test_a_request_that_is_refused_leaves_nothing_behind() -> None:
    """A plan is due that tells the runners, its id is free again, and `finished` was not asked."""
    world = World(f"{LIMIT}:per_minute=6")
    state = world.state
    assert state.arrive(Submit("a", 0.0, 4, 1)) is None
    batch, _ = plan(state)
    update(state, StepResult(batch.step, (1.0,), None, ()))
    assert state.arrive(Submit("b", 1.0, 4, 1)) is not None
    assert has_work(state) and not state.requests.keys() & {"b"}
    batch, _ = plan(state)
    assert "b" in batch.finished
    state.view.advance(60.0)
    assert state.arrive(Submit("b", 60.0, 4, 1)) is None


@pytest.mark.parametrize("num_replicas", [1, 2])
async def test_a_refused_request_ends_with_the_reason_and_others_go_on(
    tmp_path: Path, num_replicas: int
) -> None:
    """Its stream's one delta says so; the answers of the others are whole, and the router counts neither."""
    policy = find_policy(written(tmp_path, FULL, HEAD))
    async with served(policy=policy, replicas=num_replicas, max_num_seqs=1, router=LeastRequests()) as (
        _,
        client,
    ):
        answers = [await ask(client, f"r{number}", 5) for number in range(10)]
        assert all(answer.may_be_refused for answer in answers)
        deltas = [await read(answer) for answer in answers]
        refused = [delta for delta in deltas if delta.finish_reason == "refused"]
        assert {(d.error, d.retry_after_s, d.num_tokens) for d in refused} == {("two wait already", None, 0)}
        assert [d.num_tokens for d in deltas if d not in refused] == [5] * (10 - len(refused))
        assert 2 <= len(refused) <= 8
        assert (await health(client)).status == "healthy"
        # The queue is empty again, so that as many are taken as before.
        again = [await ask(client, f"s{number}", 5) for number in range(2)]
        assert [(await read(answer)).num_tokens for answer in again] == [5, 5]


async def test_an_ordinary_policy_answers_at_once() -> None:
    """No stream waits for a verdict that cannot come."""
    async with served() as (_, client):
        assert not (await ask(client, "r", 3)).may_be_refused


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_a_served_client_gets_429_and_when_to_come_again() -> None:
    """Whole answers and streams alike; what came in time is answered."""
    with live(*EMULATED, "--policy", f"{LIMIT}:per_minute=2") as server:
        first = Stream(server, max_tokens=4)
        assert len(first.text) > 0
        for stream in (False, True):
            refused = server.complete(max_tokens=4, stream=stream)
            assert refused.status_code == 429, refused.text
            assert 1 <= int(refused.headers["Retry-After"]) <= 30
            error = refused.json()["error"]
            assert error["message"] == "more than 2 requests a minute"
            assert (error["type"], error["code"]) == ("Too Many Requests", 429)
        assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
        server.assert_sound()
        assert server.stop() == 0


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_replay_counts_and_explains_what_was_refused(tmp_path: Path) -> None:
    """Summary, tables, tenants and `explain` agree; decode runs on or off, the same bytes."""
    lines = [
        {"arrival_s": 1.0 * n, "prompt_tokens": 40, "output_tokens": 20, "tenant": "ab"[n % 2]}
        for n in range(30)
    ]
    units = {"arrival_s": "seconds", "prompt_tokens": "tokens", "output_tokens": "tokens"}
    trace = tmp_path / "trace.jsonl"
    header = {"format": "sundog-trace", "version": 1, "units": units}
    trace.write_text("".join(json.dumps(row) + "\n" for row in [header, *lines]))
    out = tmp_path / "run"
    command = ["replay", trace, "--policy", f"{LIMIT}:per_minute=15", "--json", "--out", out]
    done = sundog(*command)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    # Every fourth second one of each tenant, which sends one every second second.
    assert (summary["num_requests"], summary["num_finished"], summary["num_refused"]) == (30, 16, 14)
    assert {name: each["num_refused"] for name, each in summary["tenants"].items()} == {"a": 7, "b": 7}
    rows = pq.read_table(out / "requests.parquet").to_pylist()
    refused = [row for row in rows if row["reason"] == "refused"]
    assert len(refused) == 14
    assert all(row["first_scheduled_s"] is None and row["num_output_tokens"] == 0 for row in refused)
    why = "more than 15 requests a minute"
    page = sundog("explain", out).stdout
    assert f"The policy refused 14 requests: {why}" in " ".join(page.split())
    assert json.loads(sundog("explain", out, "--json").stdout)["refusals"] == {why: 14}
    one = sundog("explain", out, "--request", refused[0]["request_id"]).stdout
    assert f"refused by the policy: {why}" in " ".join(one.split())


def test_tenants_that_are_refused_are_not_said_to_wait(tmp_path: Path) -> None:
    """Refused at once, a request waits for nothing, so that nobody shares the engine with it."""
    policy = written(tmp_path, "def refuse(self, request, view):\n        return Refusal('no')", HEAD)
    assert replayed(tmp_path, policy, "--out", str(tmp_path / "run")) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    figures = summary.get("summary", summary)
    assert figures["num_refused"] == figures["num_requests"] > 0 == figures["num_finished"]
    assert figures["fairness"] is None


def test_a_refusal_is_a_line_of_the_decision_log(tmp_path: Path) -> None:
    """Once for each refused request; nothing else speaks of it; with and without lockstep."""
    policy = written(tmp_path, FULL, HEAD)
    num_refused = 0
    for seed in range(num_cases(20)):
        trace = parse_trace(policy_trace(seed, policy))
        logs = [DecisionLog(trace, lockstep=lockstep).run() for lockstep in (True, False)]
        assert logs[0] == logs[1]
        refused = [line["id"] for line in logs[0] if line["ev"] == "refuse"]
        num_refused += len(refused)
        scheduled = {name for line in logs[0] if line["ev"] == "sched" for name, _ in line["sched"]}
        assert not scheduled & set(refused)
        ended = [name for line in logs[0] if line["ev"] == "update" for name in line["finished"]]
        ended += [name for line in logs[0] if line["ev"] == "abort" for name in line["aborted"]]
        assert sorted(ended + refused) == sorted(row.submit.request_id for row in trace.rows)
    assert num_refused > 5


def test_a_log_names_who_was_refused_and_why(tmp_path: Path) -> None:
    """By `sundog schedule`, from files."""
    policy = written(tmp_path, FULL, HEAD)
    seed = next(s for s in range(40) if "refuse" in {e["ev"] for e in logged(policy_trace(s, policy))})
    trace, log = tmp_path / "t.trace.json", tmp_path / "t.log.jsonl.gz"
    trace.write_text(json.dumps(policy_trace(seed, policy)))
    assert sundog("schedule", trace, "-o", log).returncode == 0
    events = [json.loads(line) for line in gzip.decompress(log.read_bytes()).splitlines()]
    assert {event["reason"] for event in events if event["ev"] == "refuse"} == {"two wait already"}


def logged(trace: dict[str, object]) -> list[dict[str, object]]:
    return DecisionLog(parse_trace(trace)).run()
