"""Lost and restarted replicas, under every router, by fault injection."""

import pytest
import trio

from sundog.actors.kernel.actor import Ref
from sundog.actors.messages import Accepted, Generate, Refused, Sampling
from sundog.actors.policy_file import find_router
from tests.actors.fakes import STEP_S, read
from tests.core.routers.test_routers import EXAMPLES, NAMES
from tests.test_fates import BACKOFF, health, served


async def sent(client: Ref, number: int) -> Accepted | Refused:
    """A request of its own tenant and session, a moment after the one before it."""
    await trio.sleep(STEP_S / 100)
    prompt = "a prompt, long or not so long"[: number % 29 + 1]
    generate = Generate(prompt, Sampling(max_tokens=2), tenant=f"t{number}")
    answer: Accepted | Refused = await client.ask(generate)
    return answer


async def num_lost(answers: list[Accepted | Refused]) -> int:
    """How many were in the batch of a crash; all others are answered whole."""
    ends = [(whole := await read(answer)).num_tokens and whole.finish_reason for answer in answers]
    assert set(ends) <= {0, "length"}
    return ends.count(0)


@pytest.mark.parametrize("router", NAMES, ids=lambda name: EXAMPLES.get(name, name))
async def test_a_replica_that_is_down_gets_nothing_until_it_is_back(router: str) -> None:
    """What waited there goes to the other; with none up, requests are refused with a time to come again."""
    async with served(router=find_router(router), replicas=2) as (world, client):
        world.crash(1)
        answers, number = [], 0
        while (await health(client)).status == "healthy" and number < 200:
            answers.append(await sent(client, number := number + 1))
        num_before = len(world.listener.outputs)
        answers += [await sent(client, number + each) for each in range(20)]
        assert await num_lost(answers) in range(1, 3)
        assert (await health(client)).replicas == ("healthy", "restarting")
        assert {output.replica for output in world.listener.outputs[num_before:]} == {0}
        await trio.sleep(BACKOFF.first_s)
        assert (await health(client)).status == "healthy"

        for replica in range(2):
            world.crash(replica)
        answers = []
        while not isinstance(answer := await sent(client, number := number + 1), Refused) and number < 400:
            answers.append(answer)
        assert answer.kind == "unavailable" and answer.retry_after_s
        assert await num_lost(answers) in range(2, 5)
