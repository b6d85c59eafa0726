"""A router that refuses requests, and its view of replicas, by every entry point."""

from pathlib import Path

import pytest

from sundog.actors.config import EngineConfig, SchedulerConfig
from sundog.actors.messages import Capacity
from sundog.actors.policy_file import find_router
from sundog.sim.figures.metrics import summarize
from sundog.sim.replay import replay
from sundog.sim.trace.record import TraceRequest
from tests.actors.fakes import read
from tests.core.policies.world import DOCS
from tests.live import EMULATED, live
from tests.sim.toy import COST
from tests.test_fates import ask, health, served

SHED = f"{DOCS}/routers/shed_load.py:ShedLoad:most_waiting=2"
LOOKS = """
from sundog.actors.core.routers import Fleet, Refusal, RouterPolicy, Submit


class Looks(RouterPolicy):
    follows_steps = True

    def refuse(self, request, fleet):
        facts = fleet.num_free_blocks(0), fleet.num_running(0), fleet.num_waiting(0), fleet.step_s(0)
        return Refusal(str(facts), 2.0) if request.tenant == "asks" else ANSWER
"""


def test_a_replay_counts_what_its_router_refuses() -> None:
    """With the reason; the others are answered."""
    scheduler = SchedulerConfig(num_gpu_blocks=100, max_num_seqs=2, max_model_len=512)
    config = EngineConfig(scheduler, replicas=2, router=find_router(SHED))
    rows = [TraceRequest(f"r{number}", number * 0.01, 40, 200) for number in range(40)]
    found = summarize(replay(rows, config, COST, Capacity(100, 16)))
    assert 4 < found.num_refused < 36 and found.num_finished == 40 - found.num_refused
    assert found.refusals == {"all replicas are busy": found.num_refused}


async def test_a_served_router_refuses_and_sees_what_steps_left(tmp_path: Path) -> None:
    """Blocks, running and waiting requests, and the step's duration, as of the last eventful step."""
    (tmp_path / "looks.py").write_text(LOOKS.replace("ANSWER", "None"))
    router = find_router(f"{tmp_path}/looks.py:Looks")
    async with served(router=router, max_num_seqs=1) as (_, client):
        said = [(await read(await ask(client, "first", tenant="asks"))).error]
        running, waiting = await ask(client, "runs", 30), await ask(client, "waits", 3)
        deltas = running.stream.__aiter__()
        await deltas.__anext__()
        refused = await read(await ask(client, "second", tenant="asks"))
        said.append(refused.error)
        assert refused.finish_reason == "refused" and refused.retry_after_s == 2.0
        assert (await read(waiting)).num_tokens == 3
        assert (await health(client)).status == "healthy"
    assert said[0] is not None and said[0] == "(256, 0, 0, None)"
    assert said[1] is not None and said[1].startswith("(254, 1, 1, 0.0")


@pytest.mark.parametrize("wrong", ["3", "Refusal('')", "1 / 0"])
async def test_a_refusal_that_is_none_ends_the_router_and_round_robin_takes_over(
    tmp_path: Path, wrong: str
) -> None:
    """The request is routed all the same."""
    (tmp_path / "looks.py").write_text(LOOKS.replace("ANSWER", wrong))
    async with served(router=find_router(f"{tmp_path}/looks.py:Looks")) as (_, client):
        assert (await read(await ask(client, "r", 3))).num_tokens == 3
        assert (await health(client)).status == "degraded"


def test_a_client_of_a_router_that_refuses_gets_429(tmp_path: Path) -> None:
    """With the reason, and when to come again."""
    (tmp_path / "looks.py").write_text(LOOKS.replace("ANSWER", "None"))
    with live(*EMULATED, "--router", f"{tmp_path}/looks.py:Looks") as server:
        assert server.complete(max_tokens=2).status_code == 200
        refused = server.complete(max_tokens=2, tenant="asks")
        assert refused.status_code == 429 and refused.headers["Retry-After"] == "2"
        assert "None" not in refused.json()["error"]["message"]
