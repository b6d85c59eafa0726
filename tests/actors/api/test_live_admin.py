"""Operators' routes on a live server with slow steps."""

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.live import EMULATED, Live, Stream, live

LONG: dict[str, Any] = {"max_tokens": 4000, "ignore_eos": True}
KEY = {"Authorization": "Bearer secret"}
ROUTES = [
    ("POST", "reset_prefix_cache"),
    ("POST", "abort_requests"),
    ("POST", "pause"),
    ("POST", "resume"),
    ("GET", "is_paused"),
    ("POST", "drain"),
    ("POST", "undrain"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(*EMULATED, "--admin-key", "secret", "--debug") as running:
        yield running
        running.assert_sound()
        assert running.stop() == 0


def do(server: Live, method: str, path: str, **fields: Any) -> httpx.Response:
    return httpx.request(method, f"{server.url}/{path}", headers=KEY, **fields)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_the_document_says_what_operators_are_answered(server: Live, method: str, path: str) -> None:
    """Every status that these routes may have, and what they take after their paths."""
    written = httpx.get(f"{server.url}/openapi.json").json()["paths"][f"/{path}"][method.lower()]
    assert {"200", "401", "403"} <= written["responses"].keys()
    if path == "abort_requests":
        return
    for each in written.get("parameters", ()):
        wrong = do(server, method, path, params={each["name"]: "unheard-of"})
        assert wrong.status_code == 400 and wrong.json()["error"]["param"] == each["name"]
        assert "400" in written["responses"]


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_nobody_else_may(server: Live, emulated_server: Live, method: str, path: str) -> None:
    """Without the key, with a wrong one, and where there is none."""
    for headers in ({}, {"Authorization": "Bearer guess"}):
        assert httpx.request(method, f"{server.url}/{path}", headers=headers, json={}).status_code == 401
    refused = httpx.request(method, f"{emulated_server.url}/{path}", headers=KEY, json={})
    assert refused.status_code == 403 and "--admin-key" in refused.json()["error"]["message"]


def test_an_answer_is_ended_by_its_id(server: Live) -> None:
    """Its client sees it end; others go on, and unknown ids are none."""
    chosen = Stream(server, **LONG, request_id="mine")
    other = Stream(server, **LONG)
    chosen.begun.wait()
    other.begun.wait()
    ended = do(
        server, "POST", "abort_requests", json={"request_ids": ["cmpl-mine", "cmpl-mine", "cmpl-none"]}
    )
    assert ended.json() == {"status": "aborted", "aborted": 1}
    assert chosen.whole()[-1]["choices"][0]["finish_reason"] == "abort"
    assert do(server, "POST", "abort_requests", json={}).json()["aborted"] == 1
    assert other.whole()[-1]["choices"][0]["finish_reason"] == "abort"
    assert do(server, "POST", "abort_requests", json={"request_ids": "all"}).status_code == 400


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_a_paused_server_holds_up_new_requests(server: Live) -> None:
    """It ends those that run, or lets them finish; after that they are answered as if nothing had been."""
    running = Stream(server, **LONG)
    running.begun.wait()
    for _ in range(2):
        assert do(server, "POST", "pause").json() == {"status": "paused"}
    assert running.whole()[-1]["choices"][0]["finish_reason"] == "abort"
    held = Stream(server, max_tokens=3, ignore_eos=True)
    assert not held.begun.wait(0.5)
    assert do(server, "GET", "is_paused").json() == {"is_paused": True}
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert do(server, "POST", "resume").json() == {"status": "resumed"}
    assert held.whole()[-1]["choices"][0]["finish_reason"] == "length"
    finishing = Stream(server, max_tokens=60, ignore_eos=True)
    finishing.begun.wait()
    assert do(server, "POST", "pause", params={"mode": "wait"}).status_code == 200
    assert finishing.whole()[-1]["choices"][0]["finish_reason"] == "length"
    do(server, "POST", "resume")
    assert do(server, "POST", "pause", params={"mode": "sleep"}).json()["error"]["param"] == "mode"
    assert (
        do(server, "POST", "pause", params={"clear_cache": "maybe"}).json()["error"]["param"] == "clear_cache"
    )
    assert do(server, "GET", "is_paused").json() == {"is_paused": False}


@pytest.mark.long(keep=1, reason="begins a server for each manner; `make test` begins one")
@pytest.mark.parametrize(
    "command",
    [EMULATED, (*EMULATED, "--api-processes", "2"), ("sundog", "serve", "--port", "0")],
    ids=["emulated", "two doors", "torch"],
)
@pytest.mark.parametrize("clears", ["true", "false"])
def test_answers_are_kept_while_a_server_is_paused(command: tuple[str, ...], clears: str) -> None:
    """No token comes until it is resumed, and then the rest of the same answer; new requests wait."""
    with live(*command, "--admin-key", "secret") as server:
        alone = Stream(server, max_tokens=400, ignore_eos=True).text
        kept = Stream(server, max_tokens=400, ignore_eos=True)
        kept.begun.wait()
        paused = do(server, "POST", "pause", params={"mode": "keep", "clear_cache": clears})
        assert paused.json() == {"status": "paused"}
        time.sleep(0.2)
        num_events, held = len(kept.events), Stream(server, max_tokens=3, ignore_eos=True)
        assert not held.begun.wait(0.5)
        assert len(kept.events) == num_events < 400 and server.health().status_code == 200
        assert do(server, "POST", "resume").json() == {"status": "resumed"}
        assert "--simulate" in command or kept.text == alone
        assert [stream.whole()[-1]["choices"][0]["finish_reason"] for stream in (kept, held)] == [
            "length"
        ] * 2
        assert server.stop() == 0


def test_an_engine_is_drained_and_given_requests_again(server: Live) -> None:
    """What runs is finished; meanwhile there is no other engine, so clients are told to come again."""
    running = Stream(server, max_tokens=60, ignore_eos=True)
    running.begun.wait()
    drained = do(server, "POST", "drain", params={"engine": "0"})
    assert drained.json() == {"status": "drained", "engine": 0}
    assert running.whole()[-1]["choices"][0]["finish_reason"] == "length"
    assert server.health().status_code == 503 and server.health().json()["replicas"] == ["draining"]
    refused = server.complete(max_tokens=1)
    assert refused.status_code == 503 and "drained" in refused.json()["error"]["message"]
    assert do(server, "POST", "undrain?engine=0").json() == {"status": "undrained", "engine": 0}
    assert server.complete(max_tokens=1).status_code == 200
    for wrong in ("1", "-1", "all", "", "0" * 10):
        answer = do(server, "POST", "drain", params={"engine": wrong})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "engine", wrong
    assert server.health().json() == {"status": "ok"}


def test_cached_prefixes_are_forgotten(server: Live) -> None:
    """While nothing holds blocks; or what runs is preempted first."""

    def cached() -> int:
        usage = server.complete("the fox " * 40, max_tokens=1).json()["usage"]
        num_tokens: int = usage["prompt_tokens_details"]["cached_tokens"]
        return num_tokens

    cached()
    assert cached() > 0
    assert do(server, "POST", "reset_prefix_cache").json() == {"success": True}
    assert cached() == 0 and cached() > 0
    running = Stream(server, **LONG)
    running.begun.wait()
    assert do(server, "POST", "reset_prefix_cache").json() == {"success": False}
    both = {"reset_running_requests": "true"}
    assert do(server, "POST", "reset_prefix_cache", params=both).json() == {"success": True}
    assert do(server, "POST", "abort_requests", json={}).json()["aborted"] == 1
    refused = do(server, "POST", "reset_prefix_cache", params={"reset_external": "true"})
    assert refused.json()["error"]["param"] == "reset_external"
