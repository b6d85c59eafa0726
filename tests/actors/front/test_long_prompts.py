"""Concurrent tokenization of long prompts: aborts and other requests meanwhile."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from sundog.actors.core.params.sampling import Constraint, ConstraintKind
from sundog.actors.front.codec import Vocabulary
from sundog.actors.front.intake import LONG, SHORT
from sundog.actors.graph import open_graph
from sundog.actors.kernel.actor import Ref
from sundog.actors.messages import Accepted, Cancel, Generate, Refused, Sampling
from tests.actors.fakes import EOS, Bytes, FakeBackend, Listener, engine_config, read
from tests.patience import HANGS_S

A_LONG_PROMPT = "x" * (SHORT + 1)
A_LONGER_PROMPT = "x" * (LONG + 1)


@pytest.fixture(autouse=True)
def a_step_costs_the_same_for_every_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the wall clock nobody waits for a long prefill."""
    monkeypatch.setattr("tests.actors.fakes.TOKEN_S", 0.0)


class Held(Bytes):
    """A tokenizer that is slow at some prompts: until it may go on."""

    def __init__(self, slow: str) -> None:
        self.slow = slow
        self.may_go_on = threading.Event()
        self.has_begun = threading.Event()

    def encode(self, text: str, most_tokens: int | None = None, add_special_tokens: bool = True) -> list[int]:
        if text == self.slow:
            self.has_begun.set()
            assert self.may_go_on.wait(10)
        return super().encode(text, most_tokens, add_special_tokens)

    async def begun(self) -> None:
        await trio.to_thread.run_sync(self.has_begun.wait)


@asynccontextmanager
async def graph(
    codec: Bytes, grammars: "Compiled | None" = None
) -> AsyncIterator[tuple[Ref[Generate | Cancel], Listener]]:
    listener = Listener()
    config = engine_config(max_model_len=LONG + 1000, num_gpu_blocks=2**15, max_num_batched_tokens=2**17)
    async with open_graph(
        config,
        [FakeBackend(num_blocks=2**15)],
        codec=codec,
        vocabulary=Vocabulary(eos_token_id=EOS if grammars else None, size=256, grammars=grammars),
        listeners=[listener],
    ) as client:
        yield client, listener


def long_request(prompt: str = A_LONG_PROMPT) -> Generate:
    return Generate(prompt, Sampling(max_tokens=2), request_id="long")


async def test_a_long_prompt_is_served_like_any_other() -> None:
    """To the last token, and with the time at which it came."""
    async with graph(Bytes()) as (client, listener):
        for prompt in (A_LONG_PROMPT, A_LONGER_PROMPT):
            accepted = await client.ask(long_request(prompt))
            assert isinstance(accepted, Accepted) and accepted.num_prompt_tokens == len(prompt)
            assert (await read(accepted)).num_tokens == 2
    assert [submit.arrival_s for submit in listener.submits] == [0.0, listener.outputs[1].end_times_s[-1]]


async def test_an_id_is_in_use_while_its_prompt_is_read() -> None:
    """The second request of that name is refused, whatever its length; the first is served."""
    async with graph(Bytes()) as (client, _):
        first = client.request(long_request())
        for prompt in ("short", A_LONG_PROMPT):
            refused = await client.ask(Generate(prompt, request_id="long"))
            assert isinstance(refused, Refused) and refused.param == "request_id"
        assert (await read(await first.wait())).num_tokens == 2


async def test_a_request_cancelled_while_its_prompt_is_read_is_over_at_once() -> None:
    """It never reaches the engine, and its id may be taken by another, whose answer it is not."""
    async with graph(Bytes()) as (client, listener):
        first = client.request(long_request())
        client.tell(Cancel("long"))
        second = client.request(Generate(A_LONG_PROMPT, Sampling(max_tokens=3), request_id="long"))
        assert (await read(await first.wait())).finish_reason == "abort"
        assert (await read(await second.wait())).num_tokens == 3
    assert [submit.max_tokens for submit in listener.submits] == [3]


async def test_a_long_prompt_is_read_once_for_all_its_choices() -> None:
    """A cancel meanwhile ends them all."""
    async with graph(Bytes()) as (client, listener):
        for is_cancelled, reason in ((False, "length"), (True, "abort")):
            asked = client.request(Generate(A_LONG_PROMPT, Sampling(max_tokens=2), "long", n=2))
            if is_cancelled:
                client.tell(Cancel("long"))
            accepted = await asked.wait()
            assert isinstance(accepted, Accepted)
            ends = [await read(Accepted("", 0, (stream,))) for stream in accepted.streams]
            assert [end.finish_reason for end in ends] == [reason] * 2
    assert [submit.request_id for submit in listener.submits] == ["0_long", "1_long"]


@pytest.mark.wall_clock
async def test_nobody_waits_for_a_prompt_that_is_being_read() -> None:
    """Neither a short one nor one of another length, nor a stream."""
    codec = Held(A_LONGER_PROMPT)
    async with graph(codec) as (client, _):
        slow = client.request(long_request(A_LONGER_PROMPT))
        await codec.begun()
        for prompt in ("short", A_LONG_PROMPT):
            assert (await read(await client.ask(Generate(prompt, Sampling(max_tokens=2))))).num_tokens == 2
        codec.may_go_on.set()
        assert (await read(await slow.wait())).num_tokens == 2


async def test_clients_take_turns_with_what_takes_long_to_read() -> None:
    """One that has sent five, as large as they may be, delays another's by the one that is being read."""
    async with graph(Bytes()) as (client, listener):
        by_a = [Generate(A_LONGER_PROMPT, Sampling(max_tokens=1), f"a{i}", client="a") for i in range(5)]
        by_b = [Generate(A_LONGER_PROMPT, Sampling(max_tokens=1), f"b{i}", client="b") for i in range(2)]
        asked = [client.request(each) for each in (*by_a, *by_b)]
        client.tell(Cancel("a3"))
        for each in asked:
            await read(await each.wait())
    assert [submit.request_id for submit in listener.submits] == ["a0", "b0", "a1", "b1", "a2", "a4"]


class Compiled:
    """Grammars that take long to compile, in the order in which they were compiled."""

    def __init__(self) -> None:
        self.order: list[str] = []

    def knows(self, constraint: Constraint) -> bool:
        return constraint.text in self.order

    def check(self, constraint: Constraint) -> None:
        if constraint.text not in self.order:
            self.order.append(constraint.text)


async def test_eight_new_grammars_of_a_client_delay_anothers_by_one() -> None:
    """Whoever sent theirs first; what is compiled already waits for nobody."""
    grammars = Compiled()
    async with graph(Bytes(), grammars) as (client, listener):
        asked = []
        for name in ("a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "b0", "c0"):
            sampling = Sampling(max_tokens=1, constraint=Constraint(ConstraintKind.REGEX, name))
            asked.append(client.request(Generate("short", sampling, name, client=name[0])))
        for each in asked:
            await read(await each.wait())
        assert grammars.order == ["a0", "b0", "c0", *(f"a{number}" for number in range(1, 8))]
        known = Sampling(max_tokens=1, constraint=Constraint(ConstraintKind.REGEX, "a7"))
        await read(await client.ask(Generate("short", known, "again", client="a")))
    assert len(grammars.order) == 10 and listener.submits[-1].request_id == "again"


@pytest.mark.wall_clock
async def test_hanging_up_waits_for_prompts_that_are_being_read() -> None:
    """What was asked for is answered."""
    codec = Held(A_LONG_PROMPT)
    async with graph(codec) as (client, _):
        slow = client.request(long_request())
        await codec.begun()
        codec.may_go_on.set()
    assert (await read(await slow.wait())).num_tokens == 2


@pytest.mark.wall_clock
async def test_a_cut_does_not_wait_for_a_prompt_that_is_being_read() -> None:
    """The thread is abandoned: it changes nothing any more."""
    codec = Held(A_LONG_PROMPT)
    with trio.fail_after(HANGS_S), trio.CancelScope() as cut:
        async with graph(codec) as (client, _):
            client.request(long_request())
            await codec.begun()
            cut.cancel()
    assert cut.cancelled_caught
    codec.may_go_on.set()
