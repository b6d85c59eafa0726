"""Compilation of grammars concurrent with steps; waiting requests can be aborted, others are not delayed."""

import threading
from dataclasses import replace
from typing import Any

import pytest
import trio

from sundog.actors.core.params.sampling import Constraint, ConstraintKind, Sampling
from sundog.actors.engine.engine_core import run_engine_core
from sundog.actors.kernel.actor import Reply
from sundog.actors.kernel.clock import now_s
from sundog.actors.messages import (
    Abort,
    Batch,
    EngineRefs,
    Pull,
    Refused,
    Reserved,
    StepResult,
    Submit,
    Withdraw,
)
from tests.actors.fakes import EOS, FakeBackend, Listener, engine_config

HARD = Constraint(ConstraintKind.REGEX, "a{9}")
READY = Constraint(ConstraintKind.REGEX, "b")


class Compiling(FakeBackend):
    """A backend whose compiler takes as long as the test lets it, and whose cache loses what nobody holds."""

    def __init__(self, num_blocks: int = 257) -> None:
        names = ("plain", "ready", "hard", "same", "gone", "late")
        super().__init__(dict.fromkeys(names, (1, 2, EOS)), num_blocks=num_blocks)
        self.may_end = threading.Event()
        self.compiled = [READY]
        self.held: list[Constraint] = []
        self.most_held = 0

    def hold_grammar(self, constraint: Constraint) -> int | None:
        if constraint not in self.compiled:
            return None
        self.held.append(constraint)
        self.most_held = max(self.most_held, len(self.held))
        return 400 << 20

    def let_go_grammar(self, constraint: Constraint) -> None:
        self.held.remove(constraint)

    def compile_grammar(self, constraint: Constraint) -> None:
        assert self.may_end.wait(60)
        self.compiled.append(constraint)


class Forgetful(Compiling):
    """Keeps the last grammar that it compiled, and those that are held; looks at who computes."""

    def __init__(self, num_blocks: int = 257) -> None:
        super().__init__(num_blocks)
        self.compiled_ever: list[Constraint] = []
        self.of: dict[str, Constraint] = {}
        self.most_computing = self.num_preempted = 0

    def compile_grammar(self, constraint: Constraint) -> None:
        assert self.may_end.wait(60)
        self.compiled = [constraint, *self.held]
        self.compiled_ever.append(constraint)

    def execute(self, batch: Batch) -> Reply[StepResult]:
        for name in (*batch.preempted, *batch.finished):
            self.of.pop(name, None)
        for admission in batch.admitted:
            assert admission.sampling.constraint in self.held, "a step would have to compile"
            self.of[admission.request_id] = admission.sampling.constraint
        self.num_preempted += len(batch.preempted)
        self.most_computing = max(self.most_computing, len(set(self.of.values())))
        return super().execute(batch)


def submit(name: str, constraint: Constraint | None, max_tokens: int = 30) -> Submit:
    sampling = Sampling(constraint=constraint)
    return Submit(name, now_s(), 3, max_tokens, (5, 6, 7), eos_token_id=EOS, sampling=sampling)


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
    assert backend.held == [] and backend.most_held == 1


@pytest.mark.wall_clock
async def test_requests_hold_their_grammars_until_they_end_and_wait_where_there_is_no_room() -> None:
    """Of grammars of 400 MB two are held within 1 GiB; the cache keeps none that is not held."""
    backend, listener = Forgetful(), Listener()
    names = [f"r{number}" for number in range(8)]
    backend.outputs = dict.fromkeys(names, (1, 2, 1, 2, 1, 2, EOS))
    backend.may_end.set()
    async with trio.open_nursery() as nursery:
        hold = listener.ref("test")
        await nursery.start(listener.live)
        engine: EngineRefs = await nursery.start(serve, backend, listener)
        for number, name in enumerate(names):
            engine.scheduler.tell(submit(name, Constraint(ConstraintKind.REGEX, "c" * (1 + number // 2))))
        engine.scheduler.tell(Abort(("r7",)))
        ended = await until_ended(listener, *names)
        assert ended.pop("r7") in ("abort", "stop") and set(ended.values()) == {"stop"}
        assert {len(each.text) for each in backend.compiled_ever} == {1, 2, 3, 4}
        engine.close()
        hold.close()
    # A third is looked at, and let go at once, while two are held.
    assert backend.held == [] and backend.most_held == 3 and backend.most_computing == 2


@pytest.mark.wall_clock
async def test_a_tenant_with_many_new_grammars_delays_anothers_by_one() -> None:
    """The compiler takes tenants in turn: b's only grammar comes after the one of a's that is under way."""
    backend, listener = Forgetful(), Listener()
    names = ["a1", "a2", "a3", "a4", "b5"]
    backend.outputs = dict.fromkeys(names, (1, EOS))
    async with trio.open_nursery() as nursery:
        hold = listener.ref("test")
        await nursery.start(listener.live)
        engine: EngineRefs = await nursery.start(serve, backend, listener)
        for name in names:
            constraint = Constraint(ConstraintKind.REGEX, "c" * int(name[1]))
            engine.scheduler.tell(replace(submit(name, constraint), tenant=name[0]))
        engine.scheduler.tell(Abort(("a3",)))
        assert (await until_ended(listener, "a3"))["a3"] == "abort"
        backend.may_end.set()
        await until_ended(listener, *names)
        assert [len(each.text) for each in backend.compiled_ever] == [1, 5, 2, 4], "a3 is compiled for nobody"
        engine.close()
        hold.close()
    assert backend.held == []


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
@pytest.mark.wall_clock
async def test_a_preempted_request_has_its_grammar_whatever_the_cache_has_lost() -> None:
    """In a pool for one request and a half one is preempted; no batch has a request whose grammar is gone."""
    backend, listener = Forgetful(num_blocks=34), Listener()
    names = ["a", "b", "c"]
    backend.outputs = dict.fromkeys(names, (1,) * 90)
    backend.may_end.set()
    async with trio.open_nursery() as nursery:
        hold = listener.ref("test")
        await nursery.start(listener.live)
        engine: EngineRefs = await nursery.start(serve, backend, listener)
        for number, name in enumerate(names):
            engine.scheduler.tell(submit(name, Constraint(ConstraintKind.REGEX, "c" * (1 + number)), 90))
        assert set((await until_ended(listener, *names)).values()) == {"length"}
        assert backend.num_preempted > 0
        engine.close()
        hold.close()
    assert backend.held == []


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
