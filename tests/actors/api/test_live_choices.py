"""`n` choices on live servers: with the embedded model, and emulated."""

import json
from typing import Any

import httpx
import openai
import pytest

from tests.live import Live

CHAT: Any = [{"role": "user", "content": "Tell me a story about a fox."}]


def client_of(server: Live) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def refused(server: Live, path: str = "completions", **fields: object) -> dict[str, Any]:
    prompt = {"prompt": "Hi"} if path == "completions" else {"messages": CHAT}
    answer = httpx.post(f"{server.url}/v1/{path}", json={**prompt, **fields})
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def test_choices_are_numbered_and_the_prompt_counts_once(any_server: Live) -> None:
    """Whole: in order, each with its own text; usage is their sum."""
    with client_of(any_server) as client:
        answer = client.chat.completions.create(model="", messages=CHAT, n=3, max_tokens=7, seed=1)
        alone = client.chat.completions.create(model="", messages=CHAT, max_tokens=7, seed=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage is not None and alone.usage is not None
    assert answer.usage.prompt_tokens == alone.usage.prompt_tokens
    assert answer.usage.completion_tokens == 21


def test_each_choice_has_the_seed_of_its_index(torch_server: Live) -> None:
    """Choice i of seed s is the only choice of seed s + i."""
    with client_of(torch_server) as client:

        def texts(**fields: Any) -> list[str]:
            answer = client.completions.create(model="", prompt="The fox", max_tokens=12, **fields)
            return [choice.text for choice in answer.choices]

        together = texts(n=3, seed=5, temperature=1.5)
        assert together == [texts(seed=5 + index, temperature=1.5)[0] for index in range(3)]
        assert len(set(together)) > 1


def test_choices_of_several_prompts_are_in_the_order_of_prompts(torch_server: Live) -> None:
    """Two prompts times two choices: 0 and 1 are the first prompt's."""
    asked: Any = {"model": "", "max_tokens": 6, "extra_body": {"ignore_eos": True}}
    with client_of(torch_server) as client:
        prompts = ["The fox", "Once upon a time"]
        answer = client.completions.create(prompt=prompts, n=2, seed=5, **asked)
        alone = [
            client.completions.create(prompt=prompt, seed=seed, **asked).choices[0].text
            for prompt in prompts
            for seed in (5, 6)
        ]
        assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
        assert [choice.text for choice in answer.choices] == alone


def test_streams_of_choices_are_one_stream(any_server: Live) -> None:
    """Chunks carry their index; each choice opens, ends once, and usage comes last."""
    with client_of(any_server) as client:
        stream = client.chat.completions.create(
            model="",
            messages=CHAT,
            n=2,
            seed=3,
            max_tokens=8,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        chunks = list(stream)
        whole = client.chat.completions.create(
            model="", messages=CHAT, n=2, seed=3, max_tokens=8, extra_body={"ignore_eos": True}
        )
    *chunks, last = chunks
    assert last.choices == [] and last.usage is not None
    assert last.usage.completion_tokens == 16
    choices = [choice for chunk in chunks for choice in chunk.choices]
    for index in (0, 1):
        mine = [choice for choice in choices if choice.index == index]
        assert mine[0].delta.role == "assistant"
        assert [choice.finish_reason for choice in mine if choice.finish_reason] == ["length"]
        assert mine[-1].finish_reason == "length"
        if any_server.is_real:
            assert (
                "".join(choice.delta.content or "" for choice in mine) == whole.choices[index].message.content
            )


def test_usage_of_a_chunk_is_that_of_its_choice(torch_server: Live) -> None:
    """`continuous_usage_stats` counts each choice for itself, as vLLM does; the end has the sum."""
    body = {
        "prompt": "The fox",
        "n": 2,
        "max_tokens": 3,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    with httpx.stream("POST", f"{torch_server.url}/v1/completions", json=body) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    *chunks, last = map(json.loads, lines)
    for index in (0, 1):
        mine = [chunk["usage"] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert mine[-1]["completion_tokens"] == 3
    assert last["usage"]["completion_tokens"] == 6
    assert last["usage"]["prompt_tokens"] == mine[-1]["prompt_tokens"]


def test_a_client_that_leaves_ends_all_choices(any_server: Live) -> None:
    """Nothing runs for it any more: an engine with one running slot has it free for the next."""
    body = {"prompt": "The fox", "n": 4, "max_tokens": 300, "ignore_eos": True, "stream": True}
    for _ in range(3):
        with httpx.stream("POST", f"{any_server.url}/v1/completions", json=body) as response:
            next(response.iter_lines())
    assert any_server.complete(max_tokens=2).status_code == 200
    any_server.assert_sound()


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
@pytest.mark.parametrize("n", [0, -1, 129, 1000, 2**63, 1.5, "2", True])
def test_a_number_of_choices_that_is_none_is_refused(torch_server: Live, path: str, n: object) -> None:
    """By name; what is no integer, by its place in the body."""
    is_integer = isinstance(n, int) and not isinstance(n, bool)
    assert refused(torch_server, path, n=n)["param"] == ("n" if is_integer else "body.n")


def test_equal_choices_are_refused_and_best_of_is_ignored(torch_server: Live) -> None:
    """Both as in vLLM."""
    assert refused(torch_server, n=2, temperature=0)["param"] == "n"
    answer = torch_server.complete(best_of=3, n=2, max_tokens=1, temperature=1)
    assert len(answer.json()["choices"]) == 2


def test_one_answer_has_a_bounded_number_of_choices(torch_server: Live) -> None:
    """Prompts times choices: the error says how many each prompt may have."""
    error = refused(torch_server, prompt=["x"] * 100, n=11, max_tokens=1)
    assert error["param"] == "n" and "at most 10 " in error["message"]
