"""Log probabilities through a live server, in the shapes of both APIs."""

import json
import math
from typing import Any

import httpx
import openai
import pytest

from tests.actors.api.test_live_fields import CHAT, FOX, chat, chunks, complete, refused
from tests.live import Live


def test_a_completion_lists_tokens_logprobs_tops_and_offsets(torch_server: Live) -> None:
    """The tokens join to the text; each top list begins with the token itself, as in vLLM."""
    choice = complete(torch_server, logprobs=3, return_token_ids=True)["choices"][0]
    lists = choice["logprobs"]
    assert "".join(lists["tokens"]) == choice["text"]
    assert len(lists["tokens"]) == len(lists["token_logprobs"]) == len(choice["token_ids"]) == 8
    assert lists["text_offset"] == [len("".join(lists["tokens"][:index])) for index in range(8)]
    for token, value, top in zip(
        lists["tokens"], lists["token_logprobs"], lists["top_logprobs"], strict=True
    ):
        assert next(iter(top)) == token and top[token] == value == max(top.values())
        assert len(top) == 3 and sum(map(math.exp, top.values())) <= 1.0001


def test_an_echo_has_the_logprobs_of_the_prompt(torch_server: Live) -> None:
    """As evaluation harnesses ask for them: the first is null, and greedy tokens are the likeliest."""
    prompt = complete(torch_server, return_token_ids=True)["choices"][0]
    ids = prompt["prompt_token_ids"] + prompt["token_ids"]
    lists = complete(torch_server, [ids], echo=True, max_tokens=1, logprobs=1)["choices"][0]["logprobs"]
    assert len(lists["tokens"]) == len(ids) + 1
    assert lists["token_logprobs"][0] is None and lists["top_logprobs"][0] is None
    greedy = [max(top, key=top.get) for top in lists["top_logprobs"][-9:]]
    assert greedy == lists["tokens"][-9:]
    alone = complete(torch_server, [ids], echo=True, max_tokens=0, logprobs=1)["choices"][0]
    assert alone["logprobs"]["tokens"] == lists["tokens"][:-1]
    assert alone["logprobs"]["token_logprobs"] == pytest.approx(lists["token_logprobs"][:-1], abs=1e-4)
    assert "".join(alone["logprobs"]["tokens"]) == alone["text"]
    batch = complete(torch_server, [ids, ids[:4]], echo=True, max_tokens=0, logprobs=1)["choices"]
    assert [len(each["logprobs"]["tokens"]) for each in batch] == [len(ids), 4]


def test_prompt_logprobs_are_vllms(torch_server: Live) -> None:
    """By token id, with rank and text; null for the first; in chat beside the choices."""
    choice = complete(torch_server, prompt_logprobs=2, return_token_ids=True)["choices"][0]
    first, *rest = choice["prompt_logprobs"]
    assert first is None and len(rest) == len(choice["prompt_token_ids"]) - 1
    for token, entry in zip(choice["prompt_token_ids"][1:], rest, strict=True):
        assert next(iter(entry)) == str(token)
        assert {"logprob", "rank", "decoded_token"} == entry[str(token)].keys()
        assert sorted(each["rank"] for each in entry.values())[:2] == [1, 2]
    answer = chat(torch_server, prompt_logprobs=0, return_token_ids=True)
    assert len(answer["prompt_logprobs"]) == len(answer["prompt_token_ids"])
    assert [len(entry) for entry in answer["prompt_logprobs"][1:]] == [1] * (
        len(answer["prompt_token_ids"]) - 1
    )


def test_the_official_client_reads_the_logprobs_of_chat(torch_server: Live) -> None:
    """Token, bytes, log probability and the likeliest ones; streamed they are the same."""
    asked: Any = {"model": "", "messages": CHAT, "max_tokens": 6, "temperature": 0, "logprobs": True}
    several = asked | {"n": 2, "temperature": 1, "extra_body": {"top_k": 1}}
    with openai.OpenAI(base_url=f"{torch_server.url}/v1", api_key="none", max_retries=0) as client:
        choice = client.chat.completions.create(**several, top_logprobs=2).choices[1]
        pieces = list(client.chat.completions.create(**asked, top_logprobs=2, stream=True))
        bare = client.chat.completions.create(**asked).choices[0]
    assert choice.logprobs is not None and choice.logprobs.content is not None
    content = choice.logprobs.content
    assert b"".join(bytes(each.bytes or []) for each in content).decode() == choice.message.content
    for each in content:
        assert each.top_logprobs[0].token == each.token and len(each.top_logprobs) == 2
    streamed = [each for piece in pieces if (p := piece.choices[0].logprobs) for each in p.content or []]
    assert [each.token for each in streamed] == [each.token for each in content]
    assert [each.logprob for each in streamed] == pytest.approx([each.logprob for each in content], abs=1e-4)
    assert bare.logprobs is not None and bare.logprobs.content is not None
    assert all(each.top_logprobs == [] for each in bare.logprobs.content)


def test_a_stream_of_a_completion_goes_on_with_its_offsets(torch_server: Live) -> None:
    """Chunk by chunk the lists are those of the whole answer."""
    whole = complete(torch_server, logprobs=1, echo=True)["choices"][0]["logprobs"]
    pieces = chunks(torch_server, "completions", prompt=FOX, logprobs=1, echo=True)
    lists = [piece["choices"][0]["logprobs"] for piece in pieces]
    for name in ("tokens", "text_offset"):
        assert [each for part in lists for each in part[name]] == whole[name]


def test_tokens_may_be_written_as_their_ids(torch_server: Live) -> None:
    """For tokens that have no text of their own."""
    choice = complete(torch_server, logprobs=0, return_tokens_as_token_ids=True, return_token_ids=True)[
        "choices"
    ][0]
    assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]
    assert [list(top) for top in choice["logprobs"]["top_logprobs"]] == [
        [t] for t in choice["logprobs"]["tokens"]
    ]


def test_a_character_of_several_tokens_is_shown_with_its_last(torch_server: Live) -> None:
    """The tokens before it show nothing, and all join to the text."""
    lists = complete(torch_server, "a 🦊 é", echo=True, max_tokens=0, logprobs=0)["choices"][0]["logprobs"]
    assert "".join(lists["tokens"][1:]) == "a 🦊 é" and "" in lists["tokens"]


def test_what_is_impossible_is_a_number_of_json(torch_server: Live) -> None:
    """Minus infinity would be no JSON."""
    fields = {"prompt": FOX, "max_tokens": 2, "logprobs": 20, "allowed_token_ids": [5]}
    answer = httpx.post(f"{torch_server.url}/v1/completions", json=fields)

    def no_constant(name: str) -> None:
        raise AssertionError(name)

    assert json.loads(answer.text, parse_constant=no_constant)["choices"][0]["logprobs"]


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("completions", {"logprobs": -2}, "logprobs"),
        ("completions", {"logprobs": 21}, "logprobs"),
        ("completions", {"logprobs": -1}, "logprobs"),
        ("completions", {"logprobs": True}, "logprobs"),
        ("completions", {"prompt_logprobs": -2}, "prompt_logprobs"),
        ("completions", {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ("completions", {"max_tokens": 0}, "max_tokens"),
        ("chat/completions", {"top_logprobs": 2}, "top_logprobs"),
        ("chat/completions", {"top_logprobs": -5, "logprobs": True}, "top_logprobs"),
        ("chat/completions", {"logprobs": 3}, "logprobs"),
    ],
)
def test_what_cannot_be_listed_is_refused_by_name(
    torch_server: Live, path: str, fields: dict[str, object], param: str
) -> None:
    """Too many, too few, in a stream, or without what it goes with."""
    assert refused(torch_server, path, **fields)["param"].removeprefix("body.") == param
