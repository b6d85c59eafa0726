"""Choices of one prompt are requests of their own, submitted, read, cancelled and refused together."""

from typing import Any

import trio

from sundog.actors.front.bounds import INT64_MAX
from sundog.actors.graph import open_graph
from sundog.actors.messages import Accepted, Cancel, Generate, Refused, Sampling
from tests.actors.fakes import STEP_S, Bytes, FakeBackend, Listener, engine_config, read
from tests.actors.front.test_async_llm import NUM_BLOCKS, Graph, graph, text

PROMPT = "0123456789ab"
"""Three blocks."""


async def ask(g: Graph, prompt: Any = PROMPT, seed: int | None = None, **fields: Any) -> Accepted | Refused:
    sampling = Sampling(seed=seed, max_tokens=fields.pop("max_tokens", 4))
    answer = await g.client.ask(Generate(prompt, sampling, **fields))
    assert isinstance(answer, Accepted | Refused)
    return answer


async def test_each_choice_is_a_request_with_a_stream_of_its_own() -> None:
    """In the order of their indices; the prompt counts once."""
    outputs = {**text("0_a", "one"), **text("1_a", "two"), **text("2_a", "three")}
    async with graph(outputs) as g:
        accepted = await ask(g, request_id="a", n=3, max_tokens=9)
        assert isinstance(accepted, Accepted)
        assert (accepted.request_id, accepted.num_prompt_tokens) == ("a", len(PROMPT))
        texts = [(await read(Accepted("", 0, (stream,)))).text for stream in accepted.streams]
    assert texts == ["one", "two", "three"]
    assert [submit.request_id for submit in g.listener.submits] == ["0_a", "1_a", "2_a"]


async def test_the_others_find_the_full_blocks_that_the_first_computes() -> None:
    """In the same step: each computes again what is left after them, at least one token."""
    for length, num_hit in ((12, 8), (13, 12), (15, 12), (16, 12)):
        async with graph() as g:
            await read(await ask(g, "x" * length, n=3))
            (first,) = [output for output in g.listener.outputs if output.batch.admitted]
            hits = [admission.num_computed_tokens for admission in first.batch.admitted]
        assert hits == [0, num_hit, num_hit]


async def test_seeds_count_up_from_the_first() -> None:
    """As vLLM's do; without a seed no choice has one."""
    async with graph() as g:
        await read(await ask(g, n=3, seed=7))
        await read(await ask(g, n=2))
        refused = await ask(g, n=2, seed=INT64_MAX)
    assert [submit.sampling.seed for submit in g.listener.submits] == [7, 8, 9, None, None]
    assert isinstance(refused, Refused) and refused.param == "seed"


async def test_a_cancel_ends_all_choices_that_have_not_ended() -> None:
    """Their blocks are free within a step, and the id may be used again."""
    async with graph(text("1_a", "x")) as g:
        accepted = await ask(g, request_id="a", n=3, max_tokens=100)
        assert isinstance(accepted, Accepted)
        await trio.sleep(5.5 * STEP_S)
        assert isinstance(await ask(g, request_id="a"), Refused)
        assert isinstance(await ask(g, request_id="2_a"), Refused)
        g.client.tell(Cancel("a"))
        ends = [(await read(Accepted("", 0, (stream,)))).finish_reason for stream in accepted.streams]
        assert ends == ["abort", "stop", "abort"]
        await trio.sleep(2 * STEP_S)
        assert g.listener.outputs[-1].num_free_blocks == NUM_BLOCKS
        assert (await read(await ask(g, request_id="a", n=2))).finish_reason == "length"


async def test_choices_count_as_requests_at_the_entrance() -> None:
    """More than there is room for come again later; more than there ever is are refused by name."""
    async with graph(max_waiting=3) as g:
        accepted = await ask(g, n=2, max_tokens=50)
        full = await ask(g, n=2)
        assert isinstance(full, Refused) and full.kind == "overloaded"
        never = await ask(g, n=4)
        assert isinstance(never, Refused) and (never.kind, never.param) == ("invalid", "n")
        await read(accepted)


async def test_choices_of_one_prompt_go_to_one_replica() -> None:
    """There they share its blocks; the next prompt goes to the next replica."""
    listener = Listener()
    config = engine_config(replicas=2)
    backends = [FakeBackend(), FakeBackend()]
    async with open_graph(config, backends, codec=Bytes(), listeners=[listener]) as client:
        for name in ("a", "b"):
            answer = await client.ask(Generate(PROMPT, Sampling(max_tokens=2), name, n=2))
            await read(answer)
            assert isinstance(answer, Accepted)
            await read(Accepted("", 0, answer.streams[1:]))
    replicas = {a.request_id: o.replica for o in listener.outputs for a in o.batch.admitted}
    assert replicas == {"0_a": 0, "1_a": 0, "0_b": 1, "1_b": 1}
