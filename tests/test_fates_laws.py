"""Invariants under engine crashes: requests, tokens and blocks are conserved, in every order of events."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from sundog.actors.engine.executor import Executor, Runner
from sundog.actors.engine.scheduler import Scheduler
from sundog.actors.engine.supervisor import Backoff
from sundog.actors.kernel.actor import Ref
from sundog.actors.kernel.stream import Delta
from sundog.actors.messages import Accepted, Generate, Load, Sampling
from sundog.sim.clock import run_virtual
from tests.actors.fakes import EOS, STEP_S, read
from tests.core.traces import num_cases
from tests.test_fates import NUM_BLOCKS, Crash, ask, health, served

NEVER_GIVES_UP = Backoff(first_s=0.05, longest_s=0.2, most_crashes=10**9)


class Chance:
    """Something that happens by chance while there is a stream of random numbers."""

    def __init__(self, probability: float) -> None:
        self.probability = probability
        self.rng: random.Random | None = None

    def comes(self) -> bool:
        return self.rng is not None and self.rng.random() < self.probability


@pytest.fixture(params=["runner", "executor", "scheduler"])
def chance_of_crash(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Chance:
    """Any message may be one too many for one kind of actor; the Scheduler is sent more of them."""
    chance = Chance(0.01 if request.param == "scheduler" else 0.04)
    actor = {"runner": Runner, "executor": Executor, "scheduler": Scheduler}[request.param]
    handle = actor.handle

    def handle_or_crash(self: Any, message: Any) -> Any:
        if not isinstance(message, Load) and chance.comes():
            raise Crash("by chance")
        return handle(self, message)

    monkeypatch.setattr(actor, "handle", handle_or_crash)
    return chance


def crashing_run(
    chance: Chance, seed: int, replicas: int, **fields: Any
) -> Iterator[tuple[str, Delta, bytes]]:
    """Requests beside crashes at random batches: what each was given, and what it should be."""
    rng = random.Random(seed)
    outputs = {f"r{n}": bytes(rng.choices(range(32, 127), k=rng.randint(1, 24))) for n in range(30)}
    told = {name: bytes([*tokens, EOS]) for name, tokens in outputs.items()}
    answers: dict[str, list[Delta]] = {}

    async def visit(client: Ref, name: str, arrival_s: float) -> None:
        await trio.sleep_until(arrival_s)
        while not isinstance(
            answer := await client.ask(Generate("hi", Sampling(), request_id=name)), Accepted
        ):
            assert answer.kind == "unavailable" and answer.retry_after_s is not None
            await trio.sleep(answer.retry_after_s)
        answers[name] = [delta async for delta in answer.stream]

    async def main() -> None:
        async with served(told, replicas=replicas, backoff=NEVER_GIVES_UP, **fields) as (world, client):
            chance.rng = random.Random(seed + 1)
            async with trio.open_nursery() as clients:
                for number, name in enumerate(outputs):
                    clients.start_soon(visit, client, name, number * rng.random() * STEP_S)
            chance.rng = None
            await trio.sleep(1)
            assert (await health(client)).status == "healthy"
            for number in range(replicas):
                assert (await read(await ask(client, f"last{number}", 1))).num_tokens == 1
        for backend in world.backends:
            assert backend.life.count("close") == 1
        last = {output.replica: output for output in world.listener.outputs}
        assert all(output.num_free_blocks == NUM_BLOCKS for output in last.values())

    run_virtual(main)
    assert sorted(answers) == sorted(outputs)
    for name, deltas in answers.items():
        assert [delta.finish_reason is None for delta in deltas] == [True] * (len(deltas) - 1) + [False]
        whole = Delta()
        for delta in deltas:
            whole = whole.merged(delta)
        yield name, whole, outputs[name]


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.plain
@pytest.mark.parametrize("fields", [{}, {"async_scheduling": True}], ids=["sync", "async"])
@pytest.mark.parametrize("replicas", [1, 3])
def test_under_random_crashes_requests_are_conserved(
    chance_of_crash: Chance, replicas: int, fields: dict[str, Any]
) -> None:
    """Each ends once: with its whole answer, or with an error after the first part of it."""
    num_errors = num_whole = 0
    for seed in range(num_cases(12)):
        for name, whole, expected in crashing_run(chance_of_crash, seed, replicas, **fields):
            if whole.finish_reason == "error":
                num_errors += 1
                assert whole.token_ids == tuple(expected)[: whole.num_tokens], name
            else:
                num_whole += 1
                assert (whole.text, whole.finish_reason) == (expected.decode(), "stop"), name
    assert num_errors > 10 and num_whole > 50
