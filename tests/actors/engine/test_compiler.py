"""Grammars are compiled beside the steps: requests that need none go on, and those that wait can be ended."""

import threading
from typing import Any

import pytest
import trio

from sundog.actors.core.params.sampling import Constraint, ConstraintKind, Sampling
from sundog.actors.engine.engine_core import run_engine_core
from sundog.actors.kernel.clock import now_s
from sundog.actors.messages import Abort, EngineRefs, Pull, Refused, Reserved, Submit, Withdraw
from tests.actors.fakes import EOS, FakeBackend, Listener, engine_config

HARD = Constraint(ConstraintKind.REGEX, "a{9}")
READY = Constraint(ConstraintKind.REGEX, "b")


class Compiling(FakeBackend):
    """A backend whose compiler takes as long as the test lets it."""

    def __init__(self) -> None:
        super().__init__({name: (1, 2, EOS) for name in ("plain", "ready", "hard", "same", "gone", "late")})
        self.may_end = threading.Event()
        self.compiled = [READY]

    def has_grammar(self, constraint: Constraint) -> bool:
        return constraint in self.compiled

    def compile_grammar(self, constraint: Constraint) -> None:
        assert self.may_end.wait(60)
        self.compiled.append(constraint)


def submit(name: str, constraint: Constraint | None) -> Submit:
    sampling = Sampling(constraint=constraint)
    return Submit(name, now_s(), 3, 30, (5, 6, 7), eos_token_id=EOS, sampling=sampling)


async def serve(backend: Compiling, listener: Listener, *, task_status: trio.TaskStatus[EngineRefs]) -> None:
    config: Any = engine_config()
    await run_engine_core(0, config, [listener], None, None, [backend], on_up=task_status.started)


async def until_ended(listener: Listener, *names: str) -> dict[str, str]:
    """Wait until these requests have ended; how each request has."""
    with trio.fail_after(60):
        while True:
            ended = {each.request_id: each.reason for out in listener.outputs for each in out.finished}
            if set(names) <= set(ended):
                return ended
            await trio.sleep(0.005)


@pytest.mark.wall_clock
async def test_only_requests_whose_grammar_is_not_compiled_wait_for_the_compiler() -> None:
    """Others begin and end meanwhile; an abort ends one that waits, and the rest go on afterwards."""
    backend, listener = Compiling(), Listener()
    async with trio.open_nursery() as nursery:
        hold = listener.ref("test")
        await nursery.start(listener.live)
        engine: EngineRefs = await nursery.start(serve, backend, listener)
        for name, constraint in (
            ("hard", HARD),
            ("same", HARD),
            ("gone", HARD),
            ("plain", None),
            ("ready", READY),
        ):
            engine.scheduler.tell(submit(name, constraint))
        ended = await until_ended(listener, "plain", "ready")
        assert set(ended) == {"plain", "ready"} and backend.compiled == [READY]
        engine.scheduler.tell(Abort(("gone",)))
        assert (await until_ended(listener, "gone"))["gone"] == "abort"
        backend.may_end.set()
        ended = await until_ended(listener, "hard", "same")
        assert ended["hard"] == ended["same"] == "stop" and backend.compiled == [READY, HARD]
        engine.close()
        hold.close()


@pytest.mark.wall_clock
async def test_a_request_to_fetch_that_waits_for_its_grammar_can_be_withdrawn() -> None:
    backend, listener = Compiling(), Listener()
    async with trio.open_nursery() as nursery:
        hold = listener.ref("test")
        await nursery.start(listener.live)
        engine: EngineRefs = await nursery.start(serve, backend, listener)
        reserved = engine.scheduler.request(Pull(submit("late", HARD)))
        engine.scheduler.tell(Withdraw(("late",)))
        with trio.fail_after(60):
            answer: Reserved | Refused = await reserved.wait()
        assert answer == Reserved(())
        backend.may_end.set()
        engine.close()
        hold.close()


@pytest.mark.wall_clock
async def test_an_engine_that_is_cut_does_not_wait_for_its_compiler() -> None:
    backend, listener = Compiling(), Listener()
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            await nursery.start(listener.live)
            engine: EngineRefs = await nursery.start(serve, backend, listener)
            engine.scheduler.tell(submit("hard", HARD))
            await trio.sleep(0.02)
            nursery.cancel_scope.cancel()
    assert backend.life == ["load", "close"] and backend.compiled == [READY]
    backend.may_end.set()
