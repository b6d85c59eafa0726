"""Routes other than the generating ones, on live servers."""

from typing import Any

import httpx
import openai
import pytest

from tests.actors.api.test_live_fields import CHAT, FOX, chat, complete
from tests.live import Live


def post(server: Live, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/{path}", json=body)


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_a_text_becomes_the_tokens_that_it_is_served_as(any_server: Live) -> None:
    """And they become the text again; special tokens only where they are wanted."""
    served = complete(any_server, return_token_ids=True)["choices"][0]["prompt_token_ids"]
    answer = post(any_server, "tokenize", prompt=FOX).json()
    assert answer["tokens"] == served and answer["count"] == len(served)
    assert answer["max_model_len"] > 0 and answer["token_strs"] is None
    bare = post(any_server, "tokenize", prompt=FOX, add_special_tokens=False, return_token_strs=True).json()
    assert bare["tokens"] == served[1:] and len(bare["token_strs"]) == bare["count"]
    assert post(any_server, "detokenize", tokens=bare["tokens"]).json() == {"prompt": FOX}
    assert post(any_server, "detokenize", tokens=[]).json() == {"prompt": ""}


def test_a_conversation_becomes_the_tokens_that_it_is_served_as(any_server: Live) -> None:
    """By the same template with the same arguments."""
    served = chat(any_server, return_token_ids=True)["prompt_token_ids"]
    assert post(any_server, "tokenize", messages=CHAT).json()["tokens"] == served
    shorter = post(any_server, "tokenize", messages=CHAT, add_generation_prompt=False).json()["tokens"]
    assert served[: len(shorter)] == shorter and len(shorter) < len(served)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("tokenize", {}, "prompt"),
        ("tokenize", {"prompt": FOX, "messages": CHAT}, "prompt"),
        ("tokenize", {"prompt": 7}, "body.prompt"),
        ("tokenize", {"messages": [{"role": "", "content": "x"}]}, "messages[0].role"),
        ("tokenize", {"messages": CHAT, "chat_template": "{{ 1 }}"}, "chat_template"),
        ("tokenize", {"messages": CHAT, "continue_final_message": True}, "add_generation_prompt"),
        ("detokenize", {}, "body.tokens"),
        ("detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("detokenize", {"tokens": [5, 2**31 - 1]}, "tokens"),
        ("detokenize", {"tokens": "abc"}, "body.tokens"),
    ],
)
def test_what_cannot_be_tokenised_is_refused_by_name(
    torch_server: Live, path: str, body: dict[str, Any], param: str
) -> None:
    """With the place in it."""
    answer = post(torch_server, path, **body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert post(torch_server, path, **{**body, "model": "other"}).status_code in (400, 404)


def test_the_tokenizer_shows_its_configuration(any_server: Live) -> None:
    """With its class and what loading it adds, as vLLM does; each token is its text."""
    info = httpx.get(f"{any_server.url}/tokenizer_info").json()
    assert info["tokenizer_class"] and info["backend"] == "tokenizers" and info["name_or_path"]
    assert (info["is_local"], info["local_files_only"]) == (True, False)
    assert "<|end|>" in info["added_tokens_decoder"].values() and "<|user|>" in info["extra_special_tokens"]


def test_the_load_is_the_number_of_requests_being_answered(emulated_server: Live) -> None:
    """Streams to their end; at a GPU's pace this one lasts for many seconds."""

    def load() -> int:
        number: int = httpx.get(f"{emulated_server.url}/load").json()["server_load"]
        return number

    url = f"{emulated_server.url}/v1/completions"
    body = {"prompt": FOX, "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", url, json=body) as response:
        lines = response.iter_lines()
        next(lines)
        assert load() == 1
        lines.close()
    while load():
        pass


def test_operators_see_health_and_version(any_server: Live) -> None:
    """Load balancers ping by both methods."""
    for method in ("GET", "POST"):
        assert httpx.request(method, f"{any_server.url}/ping").status_code == 200
    assert httpx.get(f"{any_server.url}/version").json().keys() == {"version"}


def test_the_server_says_what_it_serves(any_server: Live) -> None:
    """Its model, context and blocks; of an emulated one nobody computes a step."""
    info = httpx.get(f"{any_server.url}/server_info").json()
    assert info["num_engines"] == 1 and info["num_gpu_blocks"] > 1 and info["block_size"] > 0
    assert info["model"] and info["max_model_len"] > 0 and info["version"]


def test_a_model_never_sleeps(any_server: Live) -> None:
    """Gateways of vLLM's ask before they send requests."""
    assert httpx.get(f"{any_server.url}/is_sleeping").json() == {"is_sleeping": False}


def test_the_tokens_of_an_input_are_counted(any_server: Live) -> None:
    """As OpenAI's client asks for them: those that the same response would use."""
    asked: Any = {"model": "", "input": "Tell me a story.", "instructions": "Be brief."}
    with openai.OpenAI(base_url=f"{any_server.url}/v1", api_key="none", max_retries=0) as client:
        counted = client.responses.input_tokens.count(**asked)
        used = client.responses.create(**asked, max_output_tokens=1).usage
    assert counted.object == "response.input_tokens"
    assert used is not None and counted.input_tokens == used.input_tokens
    refused = post(any_server, "v1/responses/input_tokens", model="other", input="x")
    assert refused.status_code == 404


def test_a_model_has_its_permissions(any_server: Live) -> None:
    """As vLLM lists them."""
    (card,) = httpx.get(f"{any_server.url}/v1/models").json()["data"]
    assert card["permission"][0]["object"] == "model_permission"
    assert card["permission"][0]["allow_logprobs"] is True
