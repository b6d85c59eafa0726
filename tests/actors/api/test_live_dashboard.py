"""The live page, through live servers."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.resources import files
from typing import Any

import httpx
import pytest

from tests.live import EMULATED, Live, live


def events(url: str, wanted: str = "", **headers: str) -> Iterator[Any]:
    """What the page is told, one instant after another, or of one kind."""
    with httpx.stream("GET", f"{url}/dashboard/events", headers=headers) as answer:
        answer.raise_for_status()
        kind = ""
        for line in answer.iter_lines():
            if line.startswith("data: ") and kind == wanted:
                yield json.loads(line.removeprefix("data: "))
            kind = line.removeprefix("event: ") if line.startswith("event: ") else ""


@pytest.fixture(scope="module")
def narrow_server() -> Iterator[Live]:
    """One running slot, and a key."""
    with live(*EMULATED, "--max-num-seqs", "1", "--api-key", "secret") as server:
        yield server
        assert server.stop() == 0


def test_the_page_needs_no_network(emulated_server: Live) -> None:
    """It reads events of its own server, and nothing of any other."""
    page = httpx.get(f"{emulated_server.url}/dashboard")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert not re.findall(r"https?://|src=|@import", page.text)


def test_an_idle_server_shows_itself(any_server: Live) -> None:
    """Its model and its blocks; nobody runs."""
    now = next(events(any_server.url))
    assert now["facts"]["model"] and now["engines"][0]["is_up"] and now["engines"][0]["num_blocks"] > 0
    assert now["running"] == [] == now["waiting"] and now["blocks"] == [[]]


def test_the_page_is_told_how_many_messages_each_actor_handles(any_server: Live) -> None:
    """Those of an engine in a process of its own, too, within a second of their being handled."""
    stream = events(any_server.url)
    before = next(stream)
    assert any_server.complete(max_tokens=30, ignore_eos=True).status_code == 200

    def handled(now: Any) -> dict[str, int]:
        return {each["name"]: each["num_handled"] for each in now["actors"]}

    first = handled(before)
    for _ in range(10):
        then = handled(next(stream))
        if then["runner-0.0"] - first["runner-0.0"] >= 30:
            break
    assert {name: then[name] - first[name] >= 30 for name in ("scheduler-0", "executor-0", "runner-0.0")} == {
        name: True for name in ("scheduler-0", "executor-0", "runner-0.0")
    }
    assert then["async-llm"] > first["async-llm"] and "router" in then and "metrics" in then


def test_who_waits_is_told_why_and_how_long(narrow_server: Live) -> None:
    """By the page's key only; the forecast comes from the scheduler run ahead."""
    url, auth = narrow_server.url, {"Authorization": "Bearer secret"}
    assert httpx.get(f"{url}/dashboard").status_code == 200
    assert httpx.get(f"{url}/dashboard/events").status_code == 401
    body = {"prompt": "Once", "max_tokens": 300, "ignore_eos": True, "stream": True}
    with (
        httpx.stream("POST", f"{url}/v1/completions", json=body, headers=auth) as first,
        httpx.stream("POST", f"{url}/v1/completions", json=body, headers=auth) as second,
    ):
        assert (first.status_code, second.status_code) == (200, 200)
        for now in events(url, **auth):
            if now["waiting"] and now["waiting"][0]["forecast_ttft_s"] is not None:
                break
    (waiting,) = now["waiting"]
    assert waiting["lacks"] == "max_num_seqs" and waiting["forecast_ttft_s"] >= waiting["age_s"]
    (running,) = now["running"]
    assert running["num_blocks"] == sum(count for _, count, _ in now["blocks"][0])


def burst(server: Live, **more: Any) -> tuple[dict[str, float], list[list[float]]]:
    """Twelve short answers, then sixty long ones: what became of first forecasts, and all ranges."""

    def ask(max_tokens: int) -> int:
        body = {"prompt": "Once", "max_tokens": max_tokens, "ignore_eos": True, **more}
        return httpx.post(f"{server.url}/v1/completions", json=body, timeout=120).status_code

    ranges: list[list[float]] = []
    with ThreadPoolExecutor(60) as pool:
        assert set(pool.map(ask, [16] * 12)) == {200}
        asked = pool.map(ask, [160] * 60)
        for now in events(server.url):
            ranges += [each["forecast_range_s"] for each in now["waiting"] if each["forecast_range_s"]]
            if ranges and not now["waiting"]:
                break
        assert set(asked) == {200}
    return now["forecasts"], ranges


@pytest.mark.long(reason="plays a burst on the real clock")
def test_a_burst_of_longer_answers_is_forecast() -> None:
    """Their length is known: the first forecasts are at most 15 % off, in the median, and no range.

    The clock runs at a third of its pace, so that a busy machine keeps it.
    """
    with live(*EMULATED, "--max-num-seqs", "12", "--time-scale", "0.33") as server:
        judged, ranges = burst(server)
    assert judged["median_error"] <= 0.15 and judged["num"] > 40 and not judged["num_ranges"]
    assert all(low == high for low, high in ranges)


@pytest.mark.long(reason="plays a load on the real clock")
def test_answers_that_may_stop_are_forecast_as_a_range() -> None:
    """Some have stopped at a blank, so others may."""
    with live(*EMULATED, "--max-num-seqs", "12") as server:
        for _ in range(8):
            stopped = server.complete(max_tokens=100, stop=[" "]).json()["choices"][0]
            assert stopped["finish_reason"] == "stop"
        judged, ranges = burst(server, stop=["a text that never comes"])
    assert judged["num_ranges"] > 0 and 0 <= judged["share_held"] <= 1
    assert all(0 < low <= high for low, high in ranges) and any(low < high for low, high in ranges)


def test_each_replica_is_run_ahead_for_its_own_queue() -> None:
    """Two slots and four requests: two wait, each behind its own."""
    body = {"prompt": "Once", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with live(*EMULATED, "--replicas", "2", "--max-num-seqs", "1") as server, ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(httpx.stream("POST", f"{server.url}/v1/completions", json=body))
        for now in events(server.url):
            waiting = [each for each in now["waiting"] if each["forecast_ttft_s"] is not None]
            if len(waiting) == 2:
                break
        assert {each["replica"] for each in waiting} == {0, 1}
        assert len(now["running"]) == 2 and all(spans for spans in now["blocks"])


def test_a_page_that_is_open_does_not_hold_up_the_end() -> None:
    """A server that stops ends its events in good order."""
    with live(*EMULATED) as server:
        stream = events(server.url)
        next(stream)
        assert server.stop() == 0
        list(stream)


def test_the_page_says_that_requests_are_held_up_at_the_door() -> None:
    """How many, while it is paused; and at last that the server is stopping."""
    with live(*EMULATED, "--admin-key", "secret") as server, ThreadPoolExecutor() as pool:
        gates, auth = events(server.url, "gate"), {"Authorization": "Bearer secret"}
        assert next(gates) == {"is_paused": False, "num_held": 0, "is_stopping": False}
        assert httpx.post(f"{server.url}/pause", headers=auth).status_code == 200
        held = pool.submit(server.complete, max_tokens=2)
        for gate in gates:
            if gate["num_held"]:
                break
        assert gate == {"is_paused": True, "num_held": 1, "is_stopping": False}
        assert httpx.post(f"{server.url}/resume", headers=auth).status_code == 200
        assert held.result().status_code == 200
        assert next(gates) == {"is_paused": False, "num_held": 0, "is_stopping": False}
        assert server.stop() == 0
        assert next(gates)["is_stopping"]


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_a_client_that_leaves_the_door_is_not_counted_there() -> None:
    """Its place at the gate is free again."""
    with live(*EMULATED, "--admin-key", "secret") as server:
        gates = events(server.url, "gate")
        next(gates)
        httpx.post(f"{server.url}/pause", headers={"Authorization": "Bearer secret"})
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/v1/completions", json={"prompt": "a", "max_tokens": 2}, timeout=3)
        counts = (gate["num_held"] for gate in gates)
        assert 1 in counts and next(counts) == 0


def test_the_page_is_told_of_tenants_refusals_and_targets() -> None:
    """Who runs and waits for whom, how many HTTP requests were refused, and which met their own targets."""
    body = {"prompt": "Once", "max_tokens": 3000, "ignore_eos": True, "stream": True}
    with live(*EMULATED, "--max-num-seqs", "1") as server, ExitStack() as stack:
        for more in ({"slo_ttft_s": 100}, {"slo_ttft_s": 1e-9}, {"tenant": "paid"}):
            assert server.complete(max_tokens=2, **more).status_code == 200
        assert server.complete(max_tokens=-1).status_code == 400
        for tenant in ("paid", "free", "free"):
            asked = {**body, "tenant": tenant}
            stack.enter_context(httpx.stream("POST", f"{server.url}/v1/completions", json=asked))
        for now in events(server.url):
            if now["num_running"] == 1 and now["num_waiting"] == 2 and now["posted"].get("4xx"):
                break
        assert now["posted"] == {"2xx": 3, "4xx": 1}
        tenants = {name: (runs, waits, blocks > 0) for name, runs, waits, blocks in now["tenants"]}
        assert tenants == {"paid": (1, 0, True), "free": (0, 2, False)}
        assert [(tenant, own) for tenant, _, _, own in now["measured"]][-3:] == [
            (None, True),
            (None, False),
            ("paid", None),
        ]
        assert all(0 < ttft_s < 100 and tpot_s > 0 for _, ttft_s, tpot_s, _ in now["measured"][-3:])


def test_the_page_names_nothing_that_it_does_not_have() -> None:
    """Each element that its script asks for is there, and whatever can be typed into has a name."""
    page = (files("sundog.actors.api") / "pages" / "dashboard.html").read_text(encoding="utf-8")
    there = re.findall(r'\bid="([\w-]+)"', page)
    assert len(there) == len(set(there))
    assert set(re.findall(r'\$\("([\w-]+)"\)', page)) - {"recorded"} <= set(there)
    labelled = re.findall(r'<label for="(\w+)"', page)
    for field in re.findall(r"<input[^>]*>", page):
        assert "aria-label=" in field or re.findall(r'id="(\w+)"', field)[0] in labelled, field
    assert not re.findall(r"<[^>]+\son\w+=", page.split("<script>")[0])
