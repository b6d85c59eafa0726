"""Adapters of an emulated server are loaded and unloaded, with vLLM's messages."""

from collections.abc import Iterator

import httpx
import pytest

from tests.live import EMULATED, START_S, Live, live


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    options = ("--enable-lora", "--max-loras", "3", "--allow-runtime-lora-updating", "--time-scale", "10")
    with live(*EMULATED, *options) as running:
        yield running
        assert running.stop() == 0


def post(server: Live, path: str, **body: object) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/{path}", json=body, timeout=START_S)


def models(server: Live) -> dict[str, dict[str, object]]:
    return {card["id"]: card for card in httpx.get(f"{server.url}/v1/models").json()["data"]}


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_an_adapter_is_loaded_used_and_unloaded(server: Live) -> None:
    """It is listed with its folder, answers under its name, shows in the metrics, and is gone again."""
    loaded = post(server, "load_lora_adapter", lora_name="sql", lora_path="/adapters/sql")
    assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'sql' added successfully.")
    assert models(server)["sql"]["root"] == "/adapters/sql" and models(server)["sql"]["parent"] == "qwen3-8b"
    assert server.complete(model="sql", max_tokens=2).json()["model"] == "sql"
    assert 'vllm:lora_requests_info{max_lora="3"' in httpx.get(f"{server.url}/metrics").text
    unloaded = post(server, "unload_lora_adapter", lora_name="sql")
    assert (unloaded.status_code, unloaded.text) == (200, "Success: LoRA adapter 'sql' removed successfully.")
    assert "sql" not in models(server)
    assert server.complete(model="sql", max_tokens=2).status_code == 404


def test_what_vllm_refuses_is_refused_in_its_words(server: Live) -> None:
    """A name that is taken, unless it is to be replaced; the model's own; one that is not there; no name."""
    body = {"lora_name": "twice", "lora_path": "/a"}
    assert post(server, "load_lora_adapter", **body).status_code == 200
    again = post(server, "load_lora_adapter", **body).json()["error"]
    assert (again["type"], again["code"]) == ("InvalidUserInput", 400) and "'load_inplace'" in again[
        "message"
    ]
    assert (
        post(server, "load_lora_adapter", **body | {"lora_path": "/b"}, load_inplace=True).status_code == 200
    )
    assert models(server)["twice"]["root"] == "/b"
    own = post(server, "load_lora_adapter", lora_name="qwen3-8b", lora_path="/a").json()["error"]
    assert own["type"] == "InvalidUserInput" and "conflicts with a served base model" in own["message"]
    missing = post(server, "unload_lora_adapter", lora_name="nobody")
    assert missing.status_code == 404 and missing.json()["error"]["type"] == "NotFoundError"
    assert post(server, "load_lora_adapter", lora_name="a").json()["error"]["param"] == "body.lora_path"


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_only_a_server_that_was_started_for_it_loads_adapters() -> None:
    """As in vLLM the routes are not there otherwise."""
    with live(*EMULATED, "--enable-lora") as server:
        answer = post(server, "load_lora_adapter", lora_name="a", lora_path="/a")
        assert answer.status_code == 404
        assert "--allow-runtime-lora-updating" in answer.json()["error"]["message"]
