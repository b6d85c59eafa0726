"""Life cycle of a request in AsyncLLM: each accepted request ends once, and all blocks are freed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trio

from sundog.actors.front.codec import Vocabulary
from sundog.actors.front.intake import FIRST_GUESS_S
from sundog.actors.graph import open_graph
from sundog.actors.kernel.actor import Ref
from sundog.actors.kernel.stream import Delta
from sundog.actors.messages import Accepted, Cancel, ChatMessage, Generate, Refused, Sampling
from tests.actors.fakes import EOS, STEP_S, Bytes, FakeBackend, Listener, engine_config, read

NUM_BLOCKS = 256


@dataclass
class Graph:
    """A composed engine whose tokens are bytes."""

    client: Ref
    backend: FakeBackend
    listener: Listener

    async def ask(self, prompt: object = "hello", **fields: object) -> Accepted | Refused:
        sampling = Sampling(
            **{
                key: fields.pop(key)
                for key in ("max_tokens", "stop", "stop_token_ids", "ignore_eos")
                if key in fields
            }  # type: ignore[arg-type]
        )
        answer = await self.client.ask(Generate(prompt, sampling, **fields))  # type: ignore[arg-type]
        assert isinstance(answer, Accepted | Refused)
        return answer


@asynccontextmanager
async def graph(outputs: dict[str, bytes] | None = None, **fields: object) -> AsyncIterator[Graph]:
    backend, listener = FakeBackend(outputs), Listener()
    vocabulary = Vocabulary(eos_token_id=EOS, size=256)
    async with open_graph(
        engine_config(**fields), [backend], codec=Bytes(), vocabulary=vocabulary, listeners=[listener]
    ) as client:
        yield Graph(client, backend, listener)


def text(name: str, written: str) -> dict[str, bytes]:
    """One request's answer, ended by the end token."""
    return {name: written.encode() + bytes([EOS])}


async def test_the_answer_is_the_text_of_the_tokens() -> None:
    """The end token is counted and not shown."""
    async with graph(text("a", "Hello, world")) as g:
        whole = await read(await g.ask(request_id="a"))
    assert whole.text == "Hello, world"
    assert whole.token_ids == (*b"Hello, world", EOS)
    assert whole.num_tokens == 13 and whole.finish_reason == "stop" and whole.stop_reason is None
    assert len(whole.times_s) == 13 and list(whole.times_s) == sorted(whole.times_s)


async def test_a_slow_reader_gets_everything_at_once_and_holds_nobody_up() -> None:
    """Unread deltas merge; the engine is long done."""
    async with graph(text("a", "Hello, world")) as g:
        accepted = await g.ask(request_id="a")
        assert isinstance(accepted, Accepted)
        await trio.sleep(100)
        assert g.listener.outputs[-1].end_times_s[-1] < 1
        deltas = [delta async for delta in accepted.stream]
    assert [delta.text for delta in deltas] == ["Hello, world"]
    assert deltas[0].num_tokens == 13 and deltas[0].finish_reason == "stop"


async def test_a_quick_reader_gets_each_token_as_it_comes() -> None:
    """And the reason with the last one, exactly once."""
    async with graph() as g:
        accepted = await g.ask(max_tokens=5)
        assert isinstance(accepted, Accepted)
        deltas = [delta async for delta in accepted.stream]
        with pytest.raises(StopAsyncIteration):
            await anext(accepted.stream)
    assert [delta.num_tokens for delta in deltas] == [1] * 5
    assert [delta.finish_reason for delta in deltas] == [None] * 4 + ["length"]


async def test_a_character_of_many_bytes_is_shown_whole() -> None:
    """Never a half of it, however many tokens it takes."""
    written = "é🌞日本 ok"
    async with graph(text("a", written)) as g:
        accepted = await g.ask(request_id="a")
        assert isinstance(accepted, Accepted)
        deltas = [delta async for delta in accepted.stream]
    assert "".join(delta.text for delta in deltas) == written
    assert len(deltas) == len(written.encode()) + 1
    assert not any("\ufffd" in delta.text for delta in deltas)


@pytest.mark.parametrize("stop", [(), ("zz",)])
async def test_a_character_that_the_end_cuts_off_has_no_text(stop: tuple[str, ...]) -> None:
    """As in vLLM: its tokens count, and no mark stands for it."""
    async with graph(text("a", "ok 日本")) as g:
        whole = await read(await g.ask(request_id="a", max_tokens=7, stop=stop))
    assert (whole.text, whole.num_tokens, whole.finish_reason) == ("ok 日", 7, "length")


async def test_a_stop_string_ends_the_request_and_is_not_shown() -> None:
    """Split over many tokens; the engine gives the blocks back within a step."""
    async with graph(text("a", "One. Two. END and much more that nobody reads")) as g:
        whole = await read(await g.ask(request_id="a", stop=("END",)))
        stopped_s = trio.current_time()
        assert whole.text == "One. Two. "
        assert (whole.finish_reason, whole.stop_reason) == ("stop", "END")
        await trio.sleep(2 * STEP_S)
        last = g.listener.outputs[-1]
        assert last.num_free_blocks == NUM_BLOCKS and last.num_running == 0
        assert last.end_times_s[-1] <= stopped_s + 2 * STEP_S
    ends = [finish for output in g.listener.outputs for finish in output.finished]
    assert [(finish.request_id, finish.reason) for finish in ends] == [("a", "stop")]
    assert g.backend.num_sampled <= len("One. Two. END") + 1


async def test_a_stop_string_that_is_never_completed_is_shown() -> None:
    """What was held back comes with the last delta."""
    async with graph(text("a", "The EN")) as g:
        whole = await read(await g.ask(request_id="a", stop=("END",)))
    assert whole.text == "The EN" and whole.stop_reason is None


async def test_a_stop_token_ends_the_request_and_is_not_shown() -> None:
    """It is the stop reason."""
    async with graph(text("a", "One! Two")) as g:
        whole = await read(await g.ask(request_id="a", stop_token_ids=(ord("!"),)))
    assert (whole.text, whole.finish_reason, whole.stop_reason) == ("One", "stop", ord("!"))


async def test_a_cancelled_request_gives_its_blocks_back_within_a_step() -> None:
    """Its reader is told at once, exactly once."""
    async with graph() as g:
        accepted = await g.ask(request_id="a", max_tokens=100)
        assert isinstance(accepted, Accepted)
        await trio.sleep(5.5 * STEP_S)
        assert g.listener.outputs[-1].num_free_blocks < NUM_BLOCKS
        g.client.tell(Cancel("a"))
        g.client.tell(Cancel("a"))
        g.client.tell(Cancel("nobody"))
        whole = await read(accepted)
        cancelled_s = trio.current_time()
        assert whole.finish_reason == "abort" and 0 < whole.num_tokens < 10
        await trio.sleep(2 * STEP_S)
        after = [each for each in g.listener.outputs if each.end_times_s[-1] > cancelled_s]
        assert after[0].num_free_blocks == NUM_BLOCKS
        assert [finish.reason for finish in after[0].finished] == ["abort"]


async def test_a_request_cancelled_before_its_first_step_never_runs() -> None:
    """It is in no batch."""
    async with graph(max_num_seqs=1) as g:
        first = await g.ask(request_id="a", max_tokens=20)
        second = await g.ask(request_id="b", max_tokens=20)
        g.client.tell(Cancel("b"))
        assert (await read(second)).finish_reason == "abort"
        assert (await read(first)).finish_reason == "length"
    admitted = [a.request_id for each in g.listener.outputs for a in each.batch.admitted]
    assert admitted == ["a"]


async def test_a_request_cancelled_at_once_is_heard_of_by_the_listeners() -> None:
    """Though nothing else runs: its end is told, and the id is free again."""
    async with graph() as g:
        accepted = await g.ask(request_id="a")
        g.client.tell(Cancel("a"))
        assert (await read(accepted)).finish_reason == "abort"
        await trio.sleep(STEP_S)
        ends = [finish for output in g.listener.outputs for finish in output.finished]
        assert [(finish.request_id, finish.reason) for finish in ends] == [("a", "abort")]
        assert (await read(await g.ask(request_id="a", max_tokens=2))).num_tokens == 2


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
async def test_a_row_that_fails_ends_its_request_and_no_other(async_scheduling: bool) -> None:
    """With the backend's words; the others' tokens come at the very times at which they came."""

    async def neighbour(fails: bool) -> Delta:
        async with graph(text("b", "a quiet answer"), async_scheduling=async_scheduling) as g:
            g.backend.fail_at = {"a": 4} if fails else {}
            failing = await g.ask(request_id="a", max_tokens=30)
            whole = await read(await g.ask(request_id="b"))
            failed = await read(failing)
            if fails:
                assert (failed.finish_reason, failed.error) == ("error", "a has no token 4")
                assert failed.num_tokens == 4
                assert (await read(await g.ask(request_id="a", max_tokens=2))).num_tokens == 2
        assert g.listener.outputs[-1].num_free_blocks == NUM_BLOCKS
        return whole

    alone, beside = await neighbour(False), await neighbour(True)
    assert (beside.text, beside.token_ids) == (alone.text, alone.token_ids)


async def test_beyond_max_waiting_the_door_is_closed() -> None:
    """With a time to come back; it opens again when somebody has ended."""
    async with graph(max_waiting=2) as g:
        first = await g.ask(max_tokens=5)
        await g.ask(max_tokens=50)
        refused = await g.ask()
        assert isinstance(refused, Refused) and refused.kind == "overloaded"
        assert refused.retry_after_s == FIRST_GUESS_S
        await read(first)
        assert isinstance(await g.ask(max_tokens=1), Accepted)


async def refusals(g: Graph, number: int) -> list[float]:
    """When each of so many requests in one instant is told to come back."""
    answers = [await g.ask() for _ in range(number)]
    return [answer.retry_after_s or 0.0 for answer in answers if isinstance(answer, Refused)]


async def test_who_is_turned_away_is_told_when_there_will_be_room() -> None:
    """One place after the other, as fast as requests end; nobody later than when all have ended."""
    async with graph(max_waiting=2) as g:
        begin_s = trio.current_time()
        await read(await g.ask(max_tokens=10))
        gap_s = trio.current_time() - begin_s
        for _ in range(2):
            await g.ask(max_tokens=100)
        assert await refusals(g, 4) == pytest.approx([gap_s, 2 * gap_s, 2 * gap_s, 2 * gap_s])
        await trio.sleep(gap_s)
        assert await refusals(g, 1) == pytest.approx([2 * gap_s])
        await trio.sleep(2 * gap_s)
        assert await refusals(g, 2) == pytest.approx([3 * gap_s, 6 * gap_s])


async def test_the_longer_nothing_ends_the_later_one_is_told_to_come_back() -> None:
    """A busy time is measured to now, and the idle time before it is not part of it."""
    async with graph(max_waiting=2) as g:
        await read(await g.ask(max_tokens=10))
        await trio.sleep(1000)
        slow, quick = await g.ask(max_tokens=100), await g.ask(max_tokens=10)
        await read(quick)
        await g.ask(max_tokens=100)
        (soon,) = await refusals(g, 1)
        await trio.sleep(80 * STEP_S)
        (late,) = await refusals(g, 1)
        await read(slow)
    assert soon == pytest.approx(10 * STEP_S, rel=0.2)
    assert late == pytest.approx(90 * STEP_S, rel=0.05)


@pytest.mark.parametrize(
    ("prompt", "fields", "param"),
    [
        ("", {}, "prompt"),
        ((), {}, "prompt"),
        (0, {}, "prompt"),
        ("x" * 128, {}, "prompt"),
        (128, {}, "prompt"),
        ((3, 256), {}, "prompt"),
        ((3, -1), {}, "prompt"),
        ("hello", {"max_tokens": 129}, "max_tokens"),
        ("hello", {"max_tokens": 0}, "max_tokens"),
        ((ChatMessage("judge", "hello"),), {}, "messages"),
        ((ChatMessage("user", ""),), {}, "messages"),
        ((ChatMessage("user", "x" * 128),), {}, "messages"),
    ],
)
async def test_what_cannot_be_served_is_refused_with_the_field_at_fault(
    prompt: object, fields: dict[str, object], param: str
) -> None:
    """And nothing reaches the engine."""
    async with graph() as g:
        refused = await g.ask(prompt, **fields)
        assert isinstance(refused, Refused), refused
        assert (refused.kind, refused.param) == ("invalid", param)
        assert refused.reason
    assert g.listener.submits == []


async def test_the_longest_prompt_and_answer_that_fit_are_served() -> None:
    """To the last token of the context."""
    async with graph() as g:
        whole = await read(await g.ask("x" * 127))
        assert (whole.num_tokens, whole.finish_reason) == (1, "length")
        whole = await read(await g.ask("hello", max_tokens=123))
        assert (whole.num_tokens, whole.finish_reason) == (123, "length")
        whole = await read(await g.ask("hello"))
        assert (whole.num_tokens, whole.finish_reason) == (123, "length")


async def test_without_a_tokenizer_text_is_refused() -> None:
    """Token ids are served."""
    async with open_graph(engine_config(), [FakeBackend()]) as client:
        for prompt, param in (("hello", "prompt"), ((ChatMessage("user", "hi"),), "messages")):
            refused = await client.ask(Generate(prompt))
            assert isinstance(refused, Refused) and refused.param == param
        whole = await read(await client.ask(Generate((1, 2, 3), Sampling(max_tokens=3))))
        assert whole.token_ids == (ord("."),) * 3 and whole.text == ""


async def test_an_id_in_use_is_refused_and_free_again_after_its_end() -> None:
    """Ids are the caller's; two requests of one name could not be told apart."""
    async with graph() as g:
        first = await g.ask(request_id="a", max_tokens=5)
        refused = await g.ask(request_id="a")
        assert isinstance(refused, Refused) and refused.param == "request_id"
        assert (await read(first)).num_tokens == 5
        again = await read(await g.ask(request_id="a", max_tokens=7))
        assert (again.num_tokens, again.finish_reason) == (7, "length")


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
async def test_an_id_whose_request_was_cancelled_is_not_mixed_up_with_its_heir(
    async_scheduling: bool,
) -> None:
    """Refused until the engine has let go of it; then the new request gets its own tokens."""
    async with graph({"a": bytes(range(65, 90))}, async_scheduling=async_scheduling) as g:
        await g.ask(request_id="a", max_tokens=50)
        await trio.sleep(5.5 * STEP_S)
        g.client.tell(Cancel("a"))
        for _ in range(10):
            heir = await g.ask(request_id="a", max_tokens=7)
            if isinstance(heir, Accepted):
                break
            assert heir.param == "request_id"
            await trio.sleep(STEP_S)
        whole = await read(heir)
    assert (whole.text, whole.finish_reason) == ("ABCDEFG", "length")


async def test_hanging_up_drains_what_was_accepted() -> None:
    """The block is left when the last request has ended."""
    async with graph() as g:
        accepted = [await g.ask(max_tokens=10 * number) for number in (1, 2, 3)]
    wholes = [await read(each) for each in accepted]
    assert [whole.num_tokens for whole in wholes] == [10, 20, 30]
    assert all(whole.finish_reason == "length" for whole in wholes)
    assert g.backend.life == ["load", "close"]


async def test_a_prefix_hit_is_reported() -> None:
    """In tokens, to the reader whose prompt was cached."""
    async with graph() as g:
        cold = await read(await g.ask("a prompt of 20 bytes", max_tokens=3))
        warm = await read(await g.ask("a prompt of 20 bytes", max_tokens=3))
        salted = await read(await g.ask("a prompt of 20 bytes", max_tokens=3, cache_salt="x"))
    assert (cold.num_cached_tokens, warm.num_cached_tokens, salted.num_cached_tokens) == (0, 16, 0)


async def test_where_tokens_are_counted_one_delta_says_the_end() -> None:
    """No message and no delta per token."""
    backend = FakeBackend({"a": (1, 2, 3, EOS)}, counts=True)
    async with open_graph(engine_config(), [backend]) as client:
        accepted = await client.ask(Generate(10, request_id="a"))
        assert isinstance(accepted, Accepted) and accepted.num_prompt_tokens == 10
        assert [delta async for delta in accepted.stream] == [Delta(finish_reason="stop")]
