"""OpenAI's client library against the server, including vLLM's extensions."""

from collections.abc import Callable
from typing import Any, TypeVar

import openai
import pytest
import trio

from sundog.actors.api.errors import as_openai
from sundog.actors.messages import ChatMessage, Generate, Refused

pytestmark = pytest.mark.wall_clock

T = TypeVar("T")
MODEL = "tiny/story"
HELLO: Any = [{"role": "user", "content": "hello"}]


async def with_client(site: Any, use: Callable[[openai.OpenAI], T], key: str = "none") -> T:
    """Use the synchronous client in a thread; it retries nothing."""

    def run() -> T:
        with openai.OpenAI(base_url=f"{site.url}/v1", api_key=key, max_retries=0) as client:
            return use(client)

    return await trio.to_thread.run_sync(run)


async def test_models_are_listed_and_shown(serving: Any) -> None:
    """The one model has its name, its age and vLLM's max_model_len."""
    async with serving() as site:
        listed = await with_client(site, lambda client: client.models.list().data)
        shown = await with_client(site, lambda client: client.models.retrieve(MODEL))
    assert [model.id for model in listed] == [MODEL]
    assert (shown.id, shown.created) == (MODEL, 1_700_000_000)
    assert shown.model_dump()["max_model_len"] == 256


async def test_a_completion_is_answered_whole(serving: Any) -> None:
    """Without max_tokens a completion has vLLM's sixteen tokens, and usage counts them."""
    async with serving() as site:
        answer = await with_client(site, lambda client: client.completions.create(model=MODEL, prompt="abc"))
    assert answer.id.startswith("cmpl-") and answer.object == "text_completion"
    assert answer.choices[0].text.split() == [f"w{index}" for index in range(16)]
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 16)
    assert answer.usage.total_tokens == 19
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 2


@pytest.mark.parametrize(
    ("prompt", "sent"),
    [
        ("abc", ["abc"]),
        (["abc", "de"], ["abc", "de"]),
        ([1, 2, 3], [(1, 2, 3)]),
        ([[1, 2], [3]], [(1, 2), (3,)]),
    ],
)
async def test_every_form_of_prompt_gives_its_choices(serving: Any, prompt: Any, sent: list[object]) -> None:
    """Several prompts give several choices, numbered by prompt, streamed or whole."""
    async with serving() as site:

        def use(client: openai.OpenAI) -> tuple[Any, list[Any]]:
            create = client.completions.create
            stream = create(model=MODEL, prompt=prompt, max_tokens=2, stream=True)
            return create(model=MODEL, prompt=prompt, max_tokens=2), list(stream)

        whole, chunks = await with_client(site, use)
        prompts = [generate.prompt for generate in site.llm.asked]
    assert prompts == sent + sent
    assert [choice.index for choice in whole.choices] == list(range(len(sent)))
    for index in range(len(sent)):
        choices = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
        assert "".join(choice.text for choice in choices) == whole.choices[index].text
        assert choices[-1].finish_reason == "length"


async def test_a_chat_is_answered_whole(serving: Any) -> None:
    """Content may be text or text parts; the answer is the assistant's message."""
    messages: Any = [
        {"role": "system", "content": "be brief", "name": None},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    async with serving() as site:
        answer = await with_client(
            site, lambda client: client.chat.completions.create(model=MODEL, messages=messages)
        )
        asked: Generate = site.llm.asked[0]
    assert asked.prompt == (ChatMessage("system", "be brief"), ChatMessage("user", "a\nb"))
    assert asked.sampling.max_tokens is None
    assert answer.id.startswith("chatcmpl-") and asked.request_id == answer.id
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == "w0 w1 w2 w3 w4 w5 w6 w7 "
    assert answer.choices[0].finish_reason == "stop"


async def test_an_answer_can_be_sent_back_as_a_turn(serving: Any) -> None:
    """The client dumps an assistant's message with null and empty fields; they are absent."""
    async with serving() as site:

        def use(client: openai.OpenAI) -> None:
            create = client.chat.completions.create
            turn: Any = create(model=MODEL, messages=HELLO).choices[0].message.model_dump()
            create(model=MODEL, messages=[*HELLO, turn, *HELLO])

        await with_client(site, use)
        assert [message.role for message in site.llm.asked[1].prompt] == ["user", "assistant", "user"]


async def test_a_chat_is_streamed_with_usage(serving: Any) -> None:
    """The first chunk names the role, the last choice says why it ended, then comes usage."""
    async with serving() as site:

        def use(client: openai.OpenAI) -> list[Any]:
            stream = client.chat.completions.create(
                model=MODEL,
                messages=HELLO,
                max_completion_tokens=3,
                stream=True,
                stream_options={"include_usage": True},
            )
            return list(stream)

        *chunks, last = await with_client(site, use)
    first = chunks[0].choices[0].delta
    assert (first.role, first.content) == ("assistant", "")
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == "w0 w1 w2 "
    assert chunks[-1].choices[0].finish_reason == "length"
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == [] and last.usage.completion_tokens == 3


async def test_usage_can_come_with_every_chunk(serving: Any) -> None:
    """continuous_usage_stats counts up with the stream."""
    async with serving() as site:
        site.llm.gap_s = 0.01

        def use(client: openai.OpenAI) -> list[Any]:
            options: Any = {"include_usage": True, "continuous_usage_stats": True}
            return list(
                client.completions.create(
                    model=MODEL, prompt="abc", max_tokens=3, stream=True, stream_options=options
                )
            )

        chunks = await with_client(site, use)
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == 3 and counts[0] < 3


async def test_sampling_parameters_reach_the_engine(serving: Any) -> None:
    """Every honoured field arrives in Generate under vLLM's names."""
    extra = {
        "top_k": 5,
        "min_tokens": 1,
        "stop_token_ids": [7],
        "ignore_eos": True,
        "priority": 3,
        "cache_salt": "pepper",
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "user": "me",
    }
    async with serving() as site:
        await with_client(
            site,
            lambda client: client.completions.create(
                model=MODEL,
                prompt="x",
                max_tokens=4,
                temperature=0.5,
                top_p=0.9,
                seed=11,
                stop=["END"],
                n=1,
                logit_bias={},
                presence_penalty=0,
                extra_body=extra,
            ),
        )
        asked: Generate = site.llm.asked[0]
    sampling = asked.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 5)
    assert (sampling.seed, sampling.max_tokens, sampling.min_tokens) == (11, 4, 1)
    assert (sampling.stop, sampling.stop_token_ids) == (("END",), (7,))
    assert sampling.ignore_eos
    assert (asked.priority, asked.cache_salt) == (3, "pepper")


async def test_mistakes_are_bad_requests_that_name_the_field(serving: Any) -> None:
    """The client raises BadRequestError with `param`, for wrong values and refused fields."""
    async with serving() as site:
        for field, value in (("temperature", -1), ("n", 0), ("logprobs", 3)):
            place = "body.logprobs" if field == "logprobs" else field  # of another type than it should be
            with pytest.raises(openai.BadRequestError) as caught:
                await with_client(
                    site,
                    lambda client, field=field, value=value: client.chat.completions.create(
                        model=MODEL, messages=HELLO, extra_body={field: value}
                    ),
                )
            assert caught.value.param == place and field in caught.value.message
        assert site.llm.asked == []


async def test_a_prompt_beyond_the_context_is_a_bad_request(serving: Any) -> None:
    """AsyncLLM's refusal of a prompt has OpenAI's code for it and the route's own field."""
    async with serving(spell=as_openai) as site:
        site.llm.refuse = lambda generate: Refused(
            "300 tokens, but 256 fit", param="prompt", code="context_length_exceeded"
        )
        with pytest.raises(openai.BadRequestError, match="256 fit") as caught:
            await with_client(
                site, lambda client: client.chat.completions.create(model=MODEL, messages=HELLO)
            )
    assert (caught.value.param, caught.value.code) == ("messages", "context_length_exceeded")


async def test_an_overloaded_engine_asks_to_come_back(serving: Any) -> None:
    """Refused as overloaded is RateLimitError with Retry-After in whole seconds."""
    async with serving() as site:
        site.llm.refuse = lambda generate: Refused("full", "overloaded", retry_after_s=1.2)
        with pytest.raises(openai.RateLimitError) as caught:
            await with_client(site, lambda client: client.completions.create(model=MODEL, prompt="x"))
    assert caught.value.response.headers["retry-after"] == "2"


async def test_another_model_is_not_found(serving: Any) -> None:
    """A name that is not served is NotFoundError with OpenAI's code."""
    async with serving(spell=as_openai) as site:
        with pytest.raises(openai.NotFoundError, match="tiny/story") as caught:
            await with_client(site, lambda client: client.completions.create(model="gpt-5", prompt="x"))
    assert caught.value.code == "model_not_found"


async def test_the_key_opens_v1_and_nothing_else_is_locked(serving: Any, exchange: Any) -> None:
    """Without the key /v1 is AuthenticationError; with it everything answers; health is open."""
    async with serving(api_key="secret", spell=as_openai) as site:
        with pytest.raises(openai.AuthenticationError) as caught:
            await with_client(site, lambda client: client.models.list(), key="guess")
        assert caught.value.code == "invalid_api_key"
        listed = await with_client(site, lambda client: client.models.list(), key="secret")
        assert listed.data[0].id == MODEL
        async with await site.connect() as stream:
            status, _, _ = await exchange(stream, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert status == 200
            status, _, _ = await exchange(stream, b"GET /v1/nothing HTTP/1.1\r\nHost: x\r\n\r\n")
            assert status == 401


async def test_a_failing_engine_is_a_server_error(serving: Any) -> None:
    """An error before or instead of an answer is a 500 with the engine's own words."""
    async with serving() as site:
        site.llm.fail_at = 2
        with pytest.raises(openai.InternalServerError, match="the engine died"):
            await with_client(site, lambda client: client.completions.create(model=MODEL, prompt="x"))


async def test_a_failure_in_mid_stream_is_an_event(serving: Any) -> None:
    """The client reads what came before the failure and then raises APIError."""
    texts = []
    async with serving() as site:
        site.llm.fail_at = 2
        site.llm.gap_s = 0.05

        def use(client: openai.OpenAI) -> None:
            stream = client.completions.create(model=MODEL, prompt="x", stream=True)
            for chunk in stream:
                texts.append(chunk.choices[0].text)

        with pytest.raises(openai.APIError, match="the engine died"):
            await with_client(site, use)
    assert "".join(texts) == "w0 w1 "
