"""Step times as policies see them, in every world, checked through refusals."""

from pathlib import Path

import pytest

from sundog.actors.config import EngineConfig, SchedulerConfig
from sundog.actors.messages import Capacity
from sundog.actors.policy_file import find_policy
from sundog.sim.cost.work import StepWork
from sundog.sim.replay import replay
from sundog.sim.trace.record import TraceRequest
from tests.actors.fakes import STEP_S, TOKEN_S, read
from tests.actors.test_policy_file import written
from tests.core.policies.world import World
from tests.sim.test_replay import COST
from tests.test_fates import ask, served

HEAD = "from sundog.actors.core.policies import Policy, Refusal, Request, View\n"
SAYS = (
    "def refuse(self, request, view):\n"
    "        return Refusal(str(view.step_s(300, 4))) if request.request_id == 'asks' else None"
)


def test_a_simulation_says_what_its_cost_model_does(tmp_path: Path) -> None:
    """Each decode has the mean context of the running requests: here 64 tokens in whole blocks."""
    rows = [TraceRequest("long", 0.0, 60, 400), TraceRequest("asks", 0.001, 8, 8)]
    config = EngineConfig(SchedulerConfig(max_model_len=512), find_policy(written(tmp_path, SAYS, HEAD)))
    said = replay(rows, config, COST, Capacity(40, 16)).columns.refusals["asks"]
    assert float(said) == COST.step_s(StepWork(4, 256, ((300, 0),), 5))


async def test_a_served_engine_says_what_its_steps_took(tmp_path: Path) -> None:
    """Nothing before the first step; then what fits those that were measured."""
    async with served(policy=find_policy(written(tmp_path, SAYS, HEAD))) as (_, client):
        assert (await read(await ask(client, "asks", 3))).error == "None"
        others = [await ask(client, f"r{number}", 8 + number) for number in range(6)]
        for answer in others:
            await read(answer)
        said = (await read(await ask(client, "asks", 3))).error
        assert said is not None and float(said) == pytest.approx(STEP_S + TOKEN_S * 304, rel=0.2)


def test_nothing_is_known_where_no_time_passes() -> None:
    """A schedule by steps has no clock but the steps' own."""
    assert World("fcfs").state.view.step_s(100, 3) is None
