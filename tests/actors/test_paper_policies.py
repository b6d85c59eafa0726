"""The policies of papers in docs/policies/: length, claims, serving, and equal results in each world."""

from dataclasses import replace

import pytest

from sundog.actors.config import EngineConfig
from sundog.actors.core.policies import has_urgency
from sundog.actors.messages import Capacity
from sundog.actors.policy_file import find_policy
from sundog.sim.oracle import find_predictor
from sundog.sim.record.recorder import Recorder
from sundog.sim.replay import replay
from sundog.sim.trace.record import TraceRequest
from tests.actors.fakes import read
from tests.core.policies.world import DOCS, World
from tests.sim.test_policies import CAPACITY, LIMITS, tenants
from tests.sim.test_replay import COST, digest
from tests.test_fates import ask, health, served

FOLDER = DOCS / "policies"
NAMES = {
    "fast_serve.py": "FastServe:batch=2,quantum=4,prompt_tokens_per_level=32",
    "andes.py": "Andes:lead_s=0.2",
    "sola.py": "Sola:least_tokens=4",
    "learned_rank.py": "LearnedRank:patience_s=0.5",
    "deficit.py": "Deficit:quantum=50",
    "least_recompute.py": "LeastRecompute",
}
POLICIES = [f"{FOLDER}/{file}:{name}" for file, name in NAMES.items()]
by_name = pytest.mark.parametrize("name", POLICIES, ids=list(NAMES))


def test_each_is_short_and_stands_on_the_page() -> None:
    """At most forty lines, blank ones aside; docs/papers.md names it and the command that was run."""
    page = (DOCS / "papers.md").read_text()
    assert {file.name for file in FOLDER.glob("*.py")} == set(NAMES)
    for file in FOLDER.glob("*.py"):
        lines = [line for line in file.read_text().splitlines() if line]
        assert len(lines) <= 40, file.name
        assert f"policies/{file.name}" in page, file.name


def replayed(name: str, **fields: object) -> Recorder:
    policy = find_policy(name)
    limits = replace(LIMITS, preempt_for_priority=has_urgency(policy))
    config = EngineConfig(limits, policy, **fields)  # type: ignore[arg-type]
    rows = [row._replace(slo_tpot_s=0.05, slo_ttft_s=0.2) for row in tenants(5)]
    return replay(rows, config, COST, CAPACITY, predictor=find_predictor("noisy"))


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
@by_name
def test_every_request_ends_and_decode_runs_change_no_byte(name: str) -> None:
    """Under little memory; each answer is whole."""
    runs = [replayed(name, decode_runs=decode_runs) for decode_runs in (True, False)]
    assert digest(runs[0]) == digest(runs[1])
    columns = runs[0].columns
    wanted = {row.request_id: row.num_output_tokens for row in tenants(5)}
    assert dict(zip(columns.request_id, columns.num_output_tokens, strict=True)) == wanted


@by_name
async def test_each_is_served(name: str) -> None:
    """Every answer is whole, and the policy has not failed."""
    policy = find_policy(name)
    fields = {"preempt_for_priority": True} if has_urgency(policy) else {}
    async with served(policy=policy, max_num_seqs=6, **fields) as (_, client):
        answers = [
            await ask(client, f"r{number}", 20, tenant="ab"[number % 2], slo_ttft_s=0.1, slo_tpot_s=0.1)
            for number in range(12)
        ]
        assert [(await read(answer)).num_tokens for answer in answers] == [20] * 12
        assert (await health(client)).status == "healthy"


def test_fast_serve_lets_a_newcomer_past_long_answers() -> None:
    """While two answers of a lower level run, an old one pauses."""
    world = World(f"{FOLDER}/fast_serve.py:FastServe:batch=1,quantum=4")
    world.add("old", 4, 40)
    for _ in range(10):
        world.step()
    world.add("new", 4, 4)
    world.run()
    assert world.finished == ["new", "old"]
    levels, numbers = world.state.view.memory
    assert not levels and not any(numbers[:-1])


def test_andes_takes_the_place_of_an_answer_that_is_ahead_of_its_reader() -> None:
    """It has tokens for seconds to come; who waits has none."""
    limits = {"max_num_seqs": 1, "preempt_for_priority": True}
    world = World(f"{FOLDER}/andes.py:Andes:lead_s=5", limits, step_s=0.1)
    world.add("ahead", 4, 40, arrival_s=0.0, slo_ttft_s=1.0, slo_tpot_s=1.0)
    for _ in range(8):
        world.step()
    world.add("late", 4, 4, arrival_s=0.8, slo_ttft_s=1.0, slo_tpot_s=1.0)
    world.step()
    assert world.preemptions == ["ahead"]


def test_sola_shortens_chunks_until_a_step_fits_the_pace() -> None:
    """As long as answers run that want one; the first prompt, alone, is whole."""
    rows = [TraceRequest("reader", 0.0, 16, 150, slo_tpot_s=0.005), TraceRequest("document", 0.01, 3000, 5)]
    config = EngineConfig(replace(LIMITS, max_model_len=4096, max_num_batched_tokens=2048))
    longest = {}
    for name in ("fcfs", f"{FOLDER}/sola.py:Sola:least_tokens=16"):
        columns = replay(rows, replace(config, policy=find_policy(name)), COST, Capacity(300, 16)).columns
        longest[name] = max(columns.finish_s) - min(columns.first_token_s)
    assert len(set(longest.values())) == 2


def test_learned_ranks_order_by_prediction_until_patience_ends() -> None:
    """The shortest first, but not before one that has waited too long."""
    world = World(f"{FOLDER}/learned_rank.py:LearnedRank:patience_s=50", {"max_num_seqs": 1})
    for name, predicted, arrival_s in (
        ("runs", 1, 0.0),
        ("long", 90, 0.0),
        ("short", 2, 20.0),
        ("mid", 9, 20.0),
    ):
        world.add(name, 4, 2, predicted_tokens=predicted, arrival_s=arrival_s)
        if name == "runs":
            world.step()
    world.state.view.advance(49.0)
    while "short" not in world.finished:
        world.step()
    world.state.view.advance(51.0)
    assert world.run().admissions == ["runs", "short", "long", "mid"]


def test_a_deficit_makes_tenants_take_turns() -> None:
    """Of many tokens, instead of request by request; who comes late gets no credit for its absence."""
    world = World(f"{FOLDER}/deficit.py:Deficit:quantum=20,output_weight=1", {"max_num_seqs": 1})
    for tenant in "ab":
        for number in range(8):
            name = f"{tenant}{number}"
            submitted = world.add(name, 4, 1, tenant=tenant)
            world.state.refuse(submitted, world.state.view)  # World.add asks no policy
    order = "".join(name[0] for name in world.run().admissions)
    assert order == "aaaabbbbaaaabbbb"


def test_the_victim_that_loses_least_is_preempted() -> None:
    """Not the latest, if an earlier one has computed less."""
    world = World(f"{FOLDER}/least_recompute.py:LeastRecompute", {"num_gpu_blocks": 14, "max_num_seqs": 2})
    world.add("small", 4, 40)
    world.add("large", 36, 40)
    while not world.preemptions:
        world.step()
    assert world.preemptions == ["small"]
