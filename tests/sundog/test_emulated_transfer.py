"""Prefill on one emulated server, decode on another, as a gateway does it with vLLM's NIXL connector."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.live import EMULATED, START_S, Live, live

PROMPT = list(range(300, 400))
ASKS = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None}


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    """Its transfers are slow: 144 KiB a token at 1.44 MB/s are a tenth of a second."""
    options = ("--kv-transfer-gb-per-s", "0.00147456", "--time-scale", "10")
    with live(*EMULATED, *options, "--debug") as running:
        yield running
        assert running.stop() == 0


def complete(server: Live, params: object, **fields: object) -> httpx.Response:
    body = {"prompt": PROMPT, "max_tokens": 1, "kv_transfer_params": params, **fields}
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=START_S)


def counted(server: Live, name: str) -> float:
    text = httpx.get(f"{server.url}/metrics").text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name}_total{{"))


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_a_prompt_is_prefilled_here_and_decoded_there(server: Live) -> None:
    """The first says which blocks it has; the second computes one token of the prompt, after the transfer."""
    prefilled: Any = complete(server, ASKS).json()
    params = prefilled["kv_transfer_params"]
    ((*blocks,),) = params["remote_block_ids"]
    assert len(set(blocks)) == 7 and 0 not in blocks
    assert (params["do_remote_prefill"], params["do_remote_decode"]) == (True, False)
    assert params["remote_num_tokens"] == len(PROMPT) and params["remote_request_id"].startswith("cmpl-")
    assert params["remote_engine_id"] and params["remote_port"] == 5600 and params["tp_size"] == 1
    httpx.post(f"{server.url}/reset_prefix_cache")
    other = PROMPT[::-1]
    answer = complete(server, params, prompt=other, max_tokens=5)
    decoded = answer.json()
    assert decoded["usage"]["completion_tokens"] == 5 and decoded["kv_transfer_params"] is None
    assert answer.elapsed.total_seconds() > 0.9
    sources = httpx.get(f"{server.url}/metrics").text
    assert decoded["usage"]["prompt_tokens_details"]["cached_tokens"] == len(PROMPT) - 1, sources


def test_a_chat_is_prefilled_too_and_an_ordinary_answer_says_nothing(server: Live) -> None:
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1, "kv_transfer_params": ASKS}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=START_S).json()
    assert answer["kv_transfer_params"]["remote_block_ids"][0]
    assert complete(server, None).json()["kv_transfer_params"] is None
    assert complete(server, {}).json()["kv_transfer_params"] is None


@pytest.mark.parametrize(
    ("params", "fields", "words"),
    [
        ({"do_remote_prefill": True}, {}, "no remote_engine_id"),
        ({"do_remote_decode": "yes"}, {}, 'do_remote_decode is "yes"'),
        (ASKS, {"n": 2}, "one choice of one prompt, not 2"),
        (7, {}, "should be an object"),
    ],
)
def test_a_transfer_that_cannot_be_is_refused_by_name(
    server: Live, params: object, fields: dict[str, object], words: str
) -> None:
    error = complete(server, params, **fields).json()["error"]
    assert error["param"].removeprefix("body.").startswith("kv_transfer_params") and words in error["message"]


def test_a_transfer_from_nowhere_is_refused(server: Live) -> None:
    """A number of tokens that is none."""
    known = {"do_remote_prefill": True, "remote_engine_id": "a", "remote_host": "b", "remote_port": 1}
    wrong = known | {"remote_block_ids": [[1]], "remote_num_tokens": -5}
    assert "remote_num_tokens is -5" in complete(server, wrong).json()["error"]["message"]
