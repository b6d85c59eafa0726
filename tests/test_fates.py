"""The table of fates, row by row, by fault injection on the virtual clock (`docs/fates.md`)."""

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pytest
import trio

from sundog.actors.core.batch import Batch
from sundog.actors.engine.reports import Roster
from sundog.actors.engine.supervisor import Backoff, Supervision
from sundog.actors.fates import SERVED, SIMULATED, Fates
from sundog.actors.front.codec import Vocabulary
from sundog.actors.graph import open_graph
from sundog.actors.kernel.actor import Actor, ActorDied, Ref, Reply
from sundog.actors.kernel.stream import Delta
from sundog.actors.messages import (
    Accepted,
    Cancel,
    Capacity,
    CheckHealth,
    EngineDown,
    Generate,
    Health,
    Refused,
    Sampling,
)
from sundog.sim.explain.load import load
from sundog.sim.record.journal_file import JournalFile
from sundog.sim.record.journal_rows import Header
from tests.actors.fakes import EOS, STEP_S, Bytes, BytesDecoder, FakeBackend, Listener, engine_config, read

NUM_BLOCKS = 256
BACKOFF = Backoff(first_s=1.0, longest_s=4.0, stable_s=60.0, most_crashes=3)


class Crash(Exception):
    """Injected."""


class Mortal(FakeBackend):
    """A backend that crashes when it is told to: in `load`, or at some batch or result."""

    def __init__(self, outputs: Mapping[str, Sequence[int]], fault: Callable[[str], None], key: str) -> None:
        super().__init__(outputs, key=key)
        self.fault = fault

    async def load(self) -> Capacity:
        self.fault("load")
        return await super().load()

    def execute(self, batch: Batch) -> Reply:
        self.fault("execute")
        return super().execute(batch)


@dataclass
class World:
    """A served graph on the virtual clock, and what can be broken in it."""

    outputs: Mapping[str, Sequence[int]]
    backends: list[Mortal] = field(default_factory=list)
    listener: Listener = field(default_factory=Listener)
    faults: dict[tuple[int, str], Exception] = field(default_factory=dict)
    """What the next call of a method of a replica's backend raises."""

    def fault(self, replica: int, method: str) -> None:
        error = self.faults.pop((replica, method), None)
        if error is not None:
            raise error

    def new_backend(self, replica: int) -> Mortal:
        backend = Mortal(self.outputs, lambda method: self.fault(replica, method), f"backend-{replica}")
        self.backends.append(backend)
        return backend

    def crash(self, replica: int = 0, method: str = "execute") -> None:
        self.faults[replica, method] = Crash(f"{method} of replica {replica}")


@asynccontextmanager
async def served(
    outputs: Mapping[str, Sequence[int]] | None = None,
    *,
    listeners: Sequence[Actor] = (),
    codec: Bytes | None = None,
    backoff: Backoff = BACKOFF,
    roster: Roster | None = None,
    **fields: Any,
) -> AsyncIterator[tuple[World, Ref]]:
    world, config = World(outputs or {}), engine_config(**fields)
    async with open_graph(
        config,
        [world.new_backend(replica) for replica in range(config.replicas)],
        codec=codec or Bytes(),
        vocabulary=Vocabulary(eos_token_id=EOS, size=256),
        listeners=[world.listener, *listeners],
        supervision=Supervision(SERVED, world.new_backend, backoff),
        roster=roster,
    ) as client:
        yield world, client


async def ask(client: Ref, name: str, max_tokens: int = 20, **fields: Any) -> Accepted:
    answer = await client.ask(Generate("hello", Sampling(max_tokens=max_tokens), request_id=name, **fields))
    assert isinstance(answer, Accepted), answer
    return answer


async def health(client: Ref) -> Health:
    answer = await client.ask(CheckHealth())
    assert isinstance(answer, Health)
    return answer


def text(words: str) -> bytes:
    return words.encode() + bytes([EOS])


# --- a request -----------------------------------------------------------------------------------


class BadDecoder(BytesDecoder):
    def step(self, token_id: int) -> str:
        if token_id == ord("!"):
            raise ValueError("no such token")
        return super().step(token_id)


class BadCodec(Bytes):
    """Fails at some prompts and at some tokens."""

    def encode(self, text: str, most_tokens: int | None = None, add_special_tokens: bool = True) -> list[int]:
        if "boom" in text:
            raise RuntimeError("a bug in the tokenizer")
        return super().encode(text, most_tokens, add_special_tokens)

    def decoder(
        self,
        prompt_ids: Sequence[int],
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> BytesDecoder:
        if ord("~") in prompt_ids:
            raise RuntimeError("a bug in the decoder")
        return BadDecoder()


async def quiet_neighbour(disturb: Callable[[Ref], Any] | None) -> list[Delta]:
    """The deltas of one request, beside which others come to harm or not."""
    async with served({"quiet": text("a quiet answer")}, codec=BadCodec()) as (_, client):
        accepted = await ask(client, "quiet")
        deltas = []
        async with trio.open_nursery() as nursery:
            if disturb is not None:
                nursery.start_soon(disturb, client)
            async for delta in accepted.stream:
                deltas.append(delta)
    return deltas


@pytest.mark.parametrize("prompt", ["boom", "boom" * 2000, "~"], ids=["tokenise", "long", "decoder"])
async def test_a_prompt_that_cannot_be_read_fails_alone(
    prompt: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug there is told to nobody but its own client, and its neighbour hears nothing of it."""

    async def disturb(client: Ref) -> None:
        refused = await client.ask(Generate(prompt, request_id="bad"))
        assert isinstance(refused, Refused) and refused.kind == "failed"
        assert "bug" not in refused.reason
        again = await client.ask(Generate("well", Sampling(max_tokens=1), request_id="bad"))
        assert isinstance(again, Accepted)

    texts = ["".join(d.text for d in await quiet_neighbour(each)) for each in (None, disturb)]
    assert texts[0] == texts[1] == "a quiet answer"
    assert "a bug in the" in caplog.text


async def test_a_token_that_cannot_be_decoded_fails_alone() -> None:
    """Its stream ends with an error, its blocks are free a step later, the others go on."""
    outputs = {"bad": b"Oh no! and more", "good": text("a good answer")}
    async with served(outputs, codec=BadCodec()) as (world, client):
        bad, good = await ask(client, "bad"), await ask(client, "good")
        whole = await read(bad)
        assert (whole.text, whole.finish_reason) == ("Oh no", "error") and whole.error
        assert (await read(good)).text == "a good answer"
        await trio.sleep(2 * STEP_S)
        assert world.listener.outputs[-1].num_free_blocks == NUM_BLOCKS
        assert (await read(await ask(client, "bad", 2))).num_tokens == 2


# --- an engine -----------------------------------------------------------------------------------


async def test_what_had_produced_nothing_is_answered_by_the_next_core(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The rest ends with an error; the answer is the one there would have been, once."""
    outputs = {"a": text("the answer"), "b": text("another one")}
    async with served(outputs, max_num_seqs=1) as (world, client):
        begun, waiting = await ask(client, "a"), await ask(client, "b")
        await trio.sleep(3.5 * STEP_S)
        world.crash()
        lost = await read(begun)
        assert lost.finish_reason == "error" and lost.error is not None
        assert "the answer".startswith(lost.text) and lost.text
        assert (await health(client)).status == "restarting"
        crashed_s = trio.current_time()
        assert (await read(waiting)).text == "another one"
        assert trio.current_time() - crashed_s > BACKOFF.first_s
        assert (await health(client)) == Health("healthy", ("healthy",))
        assert (await read(await ask(client, "a"))).text == "the answer"
    assert [backend.life for backend in world.backends] == [["load", "close"]] * 2
    assert world.listener.outputs[-1].num_free_blocks == NUM_BLOCKS
    (record,) = [record for record in caplog.records if record.name == "sundog.engine"]
    said = record.getMessage()
    assert "Crash: execute of replica 0" in said and "in actor runner-0.0" in said
    assert "started again in 1 s" in said and len(said.splitlines()) < 15


async def test_while_no_engine_is_up_new_requests_are_sent_away() -> None:
    """With a time to come back; then they are served."""
    async with served() as (world, client):
        world.crash()
        await ask(client, "a")
        await trio.sleep(STEP_S)
        refused = await client.ask(Generate("hello"))
        assert isinstance(refused, Refused) and refused.kind == "unavailable"
        assert refused.retry_after_s == BACKOFF.first_s
        state = await health(client)
        assert (state.status, state.serves, state.replicas) == ("restarting", False, ("restarting",))
        assert "Crash: execute of replica 0" in state.reason
        await trio.sleep(refused.retry_after_s)
        assert (await read(await ask(client, "b", 3))).num_tokens == 3


async def test_of_two_replicas_one_goes_on() -> None:
    """It is given what the other lost, and everything new, until the other is back."""
    outputs = {"a": text("the answer")}
    async with served(outputs, replicas=2, max_num_seqs=1) as (world, client):
        world.crash(0)
        dies, other, waits = [await ask(client, name, 3) for name in ("dies", "other", "a")]
        assert (await read(dies)).finish_reason == "error"
        assert (await read(other)).num_tokens == 3
        assert (await read(waits)).text == "the"
        assert trio.current_time() < BACKOFF.first_s
        state = await health(client)
        assert (state.status, state.serves, state.replicas) == ("degraded", True, ("restarting", "healthy"))
        for number in range(4):
            await read(await ask(client, f"b{number}", 2))
        assert trio.current_time() < BACKOFF.first_s
        await trio.sleep(BACKOFF.first_s)
        assert (await health(client)).status == "healthy"
        assert {output.replica for output in world.listener.outputs} == {1}
        for number in range(2):
            await read(await ask(client, f"c{number}", 2))
    assert {output.replica for output in world.listener.outputs} == {0, 1}


async def test_a_core_that_never_comes_up_again_is_dead_in_the_end() -> None:
    """After a bounded number of starts, each later than the last; nobody is left waiting."""
    async with served(max_num_seqs=1) as (world, client):

        def fault(replica: int, method: str) -> None:
            raise Crash(method)

        world.fault = fault  # type: ignore[method-assign]
        await ask(client, "a")
        whole = await read(await ask(client, "waits"))
        assert whole.finish_reason == "error" and whole.num_tokens == 0
        assert trio.current_time() == BACKOFF.first_s + 2 * BACKOFF.first_s
        state = await health(client)
        assert (state.status, state.replicas, state.retry_after_s) == ("dead", ("dead",), None)
        refused = await client.ask(Generate("hello"))
        assert isinstance(refused, Refused) and refused.kind == "unavailable"
        assert refused.retry_after_s is None
    assert len(world.backends) == BACKOFF.most_crashes


async def test_a_core_that_was_up_for_long_begins_anew() -> None:
    """Crashes that have nothing to do with one another do not add up."""
    async with served() as (world, client):
        for number in range(2 * BACKOFF.most_crashes):
            world.crash()
            assert (await read(await ask(client, f"dies{number}"))).finish_reason == "error"
            await trio.sleep(2 * BACKOFF.first_s)
            assert (await read(await ask(client, f"a{number}", 2))).num_tokens == 2
            await trio.sleep(BACKOFF.stable_s)
        assert (await health(client)).status == "healthy"


class Poisonable(Mortal):
    """A backend that dies of any batch with a request named `poison`, or a choice of it."""

    def execute(self, batch: Batch) -> Reply:
        if any("poison" in each.request_id for each in batch.admitted):
            raise Crash("poison")
        return super().execute(batch)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("fields", [{}, {"async_scheduling": True}], ids=["sync", "async"])
async def test_a_request_that_kills_is_given_to_one_engine_and_no_other(
    n: int, replicas: int, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: one crash, one error; who waited is answered whole, and is none of its other choices."""
    monkeypatch.setattr("tests.test_fates.Mortal", Poisonable)
    names = [f"waits{number}" for number in range(4)]
    outputs = {name: text(f"the answer of {name}") for name in names}
    async with served(outputs, replicas=replicas, max_num_seqs=1, **fields) as (world, client):
        poison = await client.ask(Generate("hello", Sampling(max_tokens=20), request_id="poison", n=n))
        waiting = [await ask(client, name) for name in names]
        for stream in poison.streams:
            assert [delta.finish_reason async for delta in stream] == ["error"]
        for name, accepted in zip(names, waiting, strict=True):
            assert (await read(accepted)).text == f"the answer of {name}"
        assert (await health(client)).status in ("healthy", "degraded")
    assert len(world.backends) == replicas + 1


async def test_what_kills_an_engine_outside_its_batches_is_not_submitted_for_ever() -> None:
    """After three engines it ends with an error, though it was in none of their batches."""
    async with served(backoff=Backoff(first_s=0.1), max_num_seqs=1) as (world, client):

        def fault(replica: int, method: str) -> None:
            if method == "execute" and is_hurt:
                raise Crash("whatever")

        is_hurt = True
        world.fault = fault  # type: ignore[method-assign]
        for name in ("a", "b", "c"):
            await ask(client, name)
        assert (await read(await ask(client, "waits"))).finish_reason == "error"
        assert len(world.backends) == 3
        is_hurt = False
        await trio.sleep(1)
        assert (await read(await ask(client, "again", 2))).num_tokens == 2
    assert len(world.backends) == 4


async def test_ids_of_requests_that_left_a_dead_engine_are_free() -> None:
    """Nothing is heard of them any more."""
    async with served() as (world, client):
        await ask(client, "a")
        await trio.sleep(2.5 * STEP_S)
        client.tell(Cancel("a"))
        world.crash()
        await trio.sleep(2 * BACKOFF.first_s)
        assert (await read(await ask(client, "a", 2))).num_tokens == 2


async def test_a_request_that_waits_for_an_engine_can_be_cancelled() -> None:
    """At once, and it never reaches the next one."""
    async with served(max_num_seqs=1) as (world, client):
        world.crash()
        await ask(client, "dies")
        accepted = await ask(client, "a")
        await trio.sleep(STEP_S)
        client.tell(Cancel("a"))
        assert (await read(accepted)).finish_reason == "abort"
        assert (await health(client)).status == "restarting"
        await trio.sleep(2 * BACKOFF.first_s)
        assert world.backends[-1].num_outputs == {}


async def test_hanging_up_during_a_restart_answers_what_was_accepted() -> None:
    """The block is left when it has been; with nothing to answer, at once."""
    async with served({"a": text("the answer")}, max_num_seqs=1) as (world, client):
        world.crash()
        await ask(client, "dies")
        accepted = await ask(client, "a")
        await trio.sleep(STEP_S)
    assert (await read(accepted)).text == "the answer"
    start_s = trio.current_time()
    async with served(max_num_seqs=1) as (world, client):
        world.crash()
        await ask(client, "dies")
        cancelled = await ask(client, "a")
        await trio.sleep(STEP_S)
        client.tell(Cancel("a"))
        await read(cancelled)
    assert trio.current_time() - start_s < BACKOFF.first_s


async def test_listeners_hear_what_was_lost() -> None:
    """Once per crash."""

    class Downs(Actor):
        def __init__(self) -> None:
            super().__init__("downs")
            self.heard: list[EngineDown] = []

        def handle(self, message: Any) -> Any:
            if isinstance(message, EngineDown):
                self.heard.append(message)

    downs = Downs()
    async with served(listeners=[downs], max_num_seqs=1) as (world, client):
        await ask(client, "a", 10)
        await ask(client, "waits", 10)
        await trio.sleep(2.5 * STEP_S)
        world.crash()
        await trio.sleep(1)
    (down,) = downs.heard
    assert (down.replica, down.request_ids, down.retry_after_s) == (0, ("a", "waits"), BACKOFF.first_s)
    assert down.in_batch == ("a",)


async def test_in_a_simulation_a_crash_ends_the_run_with_its_cause() -> None:
    """No restart, and one error out of all that were raised."""
    world = World({})
    with pytest.raises(ExceptionGroup) as caught:
        async with open_graph(engine_config(), [world.new_backend(0)]) as client:
            world.crash()
            await read(await client.ask(Generate(5)))
    assert caught.group_contains(Crash)
    assert not caught.group_contains(ActorDied)
    assert len(world.backends) == 1


# --- listeners -----------------------------------------------------------------------------------


class Faulty(Actor):
    """A listener that fails at its third message."""

    def __init__(self) -> None:
        super().__init__("faulty")
        self.num_heard = 0

    def handle(self, message: Any) -> Any:
        self.num_heard += 1
        if self.num_heard == 3:
            raise OSError(28, "No space left on device")


async def test_a_listener_that_fails_dies_alone(caplog: pytest.LogCaptureFixture) -> None:
    """One warning; everybody else hears and answers on."""
    faulty = Faulty()
    async with served({"a": text("the answer")}, listeners=[faulty]) as (world, client):
        assert (await read(await ask(client, "a"))).text == "the answer"
    assert faulty.num_heard == 3 and len(world.listener.outputs) > 3
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "faulty" in record.getMessage() and "No space left" in record.getMessage()


async def test_a_listener_that_fails_ends_a_simulation() -> None:
    """Its product is the point."""
    with pytest.raises(ExceptionGroup):
        async with open_graph(engine_config(), [FakeBackend()], listeners=[Faulty()]) as client:
            await read(await client.ask(Generate((1, 2, 3), Sampling(max_tokens=5))))


async def test_a_listener_that_cannot_open_ends_the_start() -> None:
    """In every world: what was asked for cannot be had."""

    class Closed(Actor):
        async def opened(self) -> None:
            raise OSError(13, "Permission denied")

    with pytest.raises(ExceptionGroup):
        async with served(listeners=[Closed("closed")]):
            raise AssertionError("it started")


# --- the table -----------------------------------------------------------------------------------


def test_the_page_says_what_the_table_says() -> None:
    """`docs/fates.md` has a row for each of the code's, with both columns."""
    page = Path(__file__).parents[1].joinpath("docs", "fates.md").read_text(encoding="utf-8")
    rows = {row.split(":")[0].strip("| "): row.split("|") for row in page.splitlines() if row.startswith("|")}
    for part in fields(Fates):
        cells = [cell.strip() for cell in rows[part.name]]
        assert cells[2:4] == [getattr(column, part.name).value for column in (SIMULATED, SERVED)]


async def test_a_record_of_a_crash_can_be_explained(tmp_path: Path) -> None:
    """What had been in its batches ended with the core; the rest waited on, and ran in the next one."""
    journal = JournalFile(tmp_path, Header.of(engine_config()))
    async with served({"b": text("another one")}, listeners=[journal], max_num_seqs=2) as (world, client):
        await ask(client, "a", 100)
        await trio.sleep(4 * STEP_S)
        await client.ask(Generate("x" * 100, Sampling(max_tokens=20), request_id="prefills"))
        waiting = await ask(client, "b")
        await trio.sleep(6 * STEP_S)
        assert any(each.request_id == "prefills" for o in world.listener.outputs for each in o.batch.admitted)
        world.crash()
        assert (await read(waiting)).text == "another one"
    begun, prefilling, anew = [load(tmp_path).requests[name] for name in ("a", "prefills", "b")]
    assert begun.reason == "error" and 0 < begun.num_output_tokens < 20
    assert prefilling.reason == "error" and prefilling.num_output_tokens == 0
    assert anew.reason == "stop" and anew.num_output_tokens == len(text("another one"))
    assert anew.waits[0].end_s - anew.waits[0].start_s > BACKOFF.first_s
