"""Failures injected into an emulated server: by a header into one request, by a rate into a share of all."""

from collections.abc import Iterator

import httpx
import pytest

from tests.live import EMULATED, START_S, Live, live
from tests.sundog.test_runs import refused, sundog

FAST = ("--time-scale", "20")


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(*EMULATED, *FAST) as running:
        yield running
        assert running.stop() == 0


def ask(server: Live, fault: str | None, **fields: object) -> httpx.Response:
    headers = {} if fault is None else {"X-Sundog-Inject": fault}
    body = {"prompt": "Once", "max_tokens": 4, **fields}
    return httpx.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=START_S)


@pytest.mark.parametrize("status", [429, 503])
def test_a_request_is_refused_by_its_header(server: Live, status: int) -> None:
    """With vLLM's error and when to come back; the next one is answered."""
    answer = ask(server, str(status))
    assert answer.status_code == status and "injected" in answer.json()["error"]["message"]
    assert answer.headers["Retry-After"] == "1"
    assert ask(server, None).status_code == 200


def test_a_first_token_is_slow(server: Live) -> None:
    """By seconds of the server's own clock: 20 of them are one of the wall's."""
    assert ask(server, "slow=20").elapsed.total_seconds() > 1
    assert ask(server, "slow=0").status_code == 200


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("stream", [True, False])
def test_a_connection_is_cut(server: Live, stream: bool) -> None:
    """In the middle of a stream, with no [DONE]; of a whole answer nothing comes. The request is aborted."""
    body = {"prompt": "Once", "max_tokens": 4000, "ignore_eos": True, "stream": stream}
    headers, lines = {"X-Sundog-Inject": "cut=5"}, []
    url = f"{server.url}/v1/completions"
    with (
        pytest.raises(httpx.TransportError),
        httpx.stream("POST", url, json=body, headers=headers, timeout=START_S) as answer,
    ):
        lines += [line for line in answer.iter_lines() if line]
    assert "[DONE]" not in "".join(lines) and len(lines) <= 6
    while httpx.get(f"{server.url}/load").json()["server_load"]:
        pass
    assert ask(server, None).status_code == 200


def test_an_engine_dies_and_comes_back(server: Live) -> None:
    """What was in its batch ends with an error, others are answered; the log says that it was injected."""
    assert ask(server, "dead-engine").status_code == 503
    server.until_it_says("its failure was injected")
    server.until_health(200)
    assert ask(server, None).status_code == 200
    assert 'sundog:engine_restarts_total{engine="0",model_name="qwen3-8b"} 1.0' in (
        httpx.get(f"{server.url}/metrics").text
    )


@pytest.mark.parametrize("fault", ["500", "slow", "slow=-1", "slow=nan", "cut=x", "429=1"])
def test_a_fault_that_is_none_is_refused_by_name(server: Live, fault: str) -> None:
    answer = ask(server, fault)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "X-Sundog-Inject"


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_a_part_of_requests_fails_and_the_same_ones_for_a_seed() -> None:
    """By rates, in the order of arrival; a header goes before them."""
    seen = []
    for _ in range(2):
        with live(*EMULATED, *FAST, "--inject", "503@0.3", "--inject", "429@0.3", "--seed", "3") as server:
            seen.append([ask(server, None, max_tokens=1).status_code for _ in range(30)])
            assert ask(server, "slow=0").status_code == 200
    assert seen[0] == seen[1] and set(seen[0]) == {200, 429, 503}
    assert 3 <= seen[0].count(503) <= 16


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_a_fault_is_refused_where_none_can_be_injected() -> None:
    """With several doors, by the header's name, on every route that answers; without it all is well."""
    with live(*EMULATED, "--api-processes", "2") as server:
        answer = ask(server, "429")
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "X-Sundog-Inject"
        assert "--api-processes 1" in answer.json()["error"]["message"]
        assert ask(server, None).status_code == 200
        assert server.stop() == 0


def test_an_injection_that_is_none_is_one_line() -> None:
    for given, reason in (
        ("503", "give FAULT@RATE"),
        ("503@2", "the rate is 2"),
        ("oom@0.1", "give 429, 503"),
    ):
        refused(sundog("emulate", "--gpu", "h100", "--inject", given), f"--inject is {given}", reason)
    several = ("emulate", "--gpu", "h100", "--inject", "503@0.1", "--api-processes", 2, "--port", 0)
    refused(sundog(*several), "--inject is for one process")
    refused(sundog("serve", "--port", 0, "--inject", "503@0.1"), "--inject is an option of `sundog emulate`")
