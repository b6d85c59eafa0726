"""`sundog serve --api-processes 2`: two processes at one port, in front of one emulated engine."""

import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import httpx
import psutil
import pytest

from tests.live import EMULATED, START_S, STOP_S, Live, Stream, live
from tests.processes import gone

KEY = {"Authorization": "Bearer secret"}
SERVE = (*EMULATED, "--api-processes", "2", "--admin-key", "secret", "--stall-timeout", "3", "--debug")
LONG: dict[str, Any] = {"max_tokens": 4000, "ignore_eos": True}
MANY = 12
"""Connections, which the kernel deals out: one chance in 2,000 that one process gets all."""


class Fragile(Stream):
    """One whose door may die."""

    def run(self) -> None:
        with suppress(httpx.HTTPError):
            super().run()


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(*SERVE) as running:
        yield running
        assert running.process.poll() is None, running.said
        assert not [line for line in running.said if "Traceback" in line], running.said
        assert running.stop() == 0


def doors(server: Live) -> list[psutil.Process]:
    """The door processes, once there are two."""
    until(lambda: len(server.below("sundog door ")) == 2, "two doors")
    return server.below("sundog door ")


def until(holds: Any, what: str) -> None:
    deadline_s = time.monotonic() + START_S
    while not holds():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.02)


def figure(server: Live, pattern: str) -> float:
    """The sum of the figures of /metrics whose names and labels match."""
    text = httpx.get(f"{server.url}/metrics", timeout=START_S).text
    return sum(float(value) for value in re.findall(rf"^{pattern}.* (\S+)$", text, re.MULTILINE))


def post(server: Live, path: str, **fields: Any) -> Any:
    return httpx.post(f"{server.url}/{path}", headers=KEY, timeout=START_S, **fields).json()


def streams(server: Live) -> list[Fragile]:
    """Some at each door, all of which have begun."""
    begun = [Fragile(server, **LONG) for _ in range(MANY)]
    for stream in begun:
        stream.begun.wait()
    return begun


def all_is_free(server: Live) -> None:
    until(lambda: figure(server, "vllm:kv_cache_usage_perc") == 0, "blocks are held")
    assert figure(server, "vllm:num_requests_running") == figure(server, "vllm:num_requests_waiting") == 0


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_all_doors_are_counted_together(server: Live) -> None:
    """Whichever is asked."""
    with ExitStack() as stack:
        clients = [stack.enter_context(httpx.Client(timeout=START_S)) for _ in range(MANY)]
        before = [figure(server, name) for name in ("http_requests_total", "vllm:request_success_total")]
        body = {"prompt": "hi", "max_tokens": 2, "ignore_eos": True}
        for client in clients:
            assert client.post(f"{server.url}/v1/completions", json=body).status_code == 200
        assert figure(server, "http_requests_total") == before[0] + MANY
        assert figure(server, "vllm:request_success_total") == before[1] + MANY
        pages = [client.get(f"{server.url}/metrics").text for client in clients]
        shown = [re.findall(r"^http_requests_total.*$", page, re.MULTILINE) for page in pages]
        assert all(each == shown[0] for each in shown)
        connected = [len([c for c in door.net_connections("tcp") if c.raddr]) for door in doors(server)]
    assert all(connected), connected


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_what_operators_do_is_done_at_every_door(server: Live) -> None:
    """/load counts all, /abort_requests ends all, and /pause holds all up."""
    running = streams(server)
    for _ in range(3):
        assert httpx.get(f"{server.url}/load").json() == {"server_load": MANY}
    assert post(server, "abort_requests", json={}) == {"status": "aborted", "aborted": MANY}
    for stream in running:
        assert stream.whole()[-1]["choices"][0]["finish_reason"] == "abort"
    assert post(server, "pause") == {"status": "paused"}
    for _ in range(MANY):
        assert httpx.get(f"{server.url}/is_paused", headers=KEY).json() == {"is_paused": True}
    held = [Stream(server, max_tokens=2, ignore_eos=True) for _ in range(MANY)]
    assert not held[0].begun.wait(0.3) and not any(stream.begun.is_set() for stream in held)
    post(server, "resume")
    for stream in held:
        assert stream.whole()[-1]["choices"][0]["finish_reason"] == "length"
    assert post(server, "drain?engine=0") == {"status": "drained", "engine": 0}
    assert {server.complete(max_tokens=1).status_code for _ in range(MANY)} == {503}
    post(server, "undrain?engine=0")
    assert server.complete(max_tokens=1).status_code == 200
    all_is_free(server)


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_clients_that_leave_a_door_leave_the_engine(server: Live) -> None:
    """Their blocks are free."""
    aborted = figure(server, 'vllm:request_success_total.*"abort"')
    for _ in range(4):
        body = {"prompt": "hi", "stream": True, **LONG}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=START_S) as answer:
            next(answer.iter_lines())
    until(lambda: figure(server, 'vllm:request_success_total.*"abort"') == aborted + 4, "they are not over")
    all_is_free(server)


def test_responses_are_not_kept_where_the_next_door_would_not_know_them(server: Live) -> None:
    """An answer says so, and so does whoever is asked for it."""
    answer = post(server, "v1/responses", json={"input": "hi", "max_output_tokens": 3})
    assert answer["store"] is False
    for fields in ({"previous_response_id": answer["id"]}, {"previous_response_id": "resp_other"}):
        refused = post(server, "v1/responses", json={"input": "hi"} | fields)
        assert "--api-processes" in refused["error"]["message"]
        assert refused["error"]["param"] == "previous_response_id"


@pytest.mark.long(keep=1, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_door_that_dies_or_stands_still_is_replaced(server: Live, number: signal.Signals) -> None:
    """Its clients lose their connections, the engine forgets them; those of the other door do not notice."""
    assert post(server, "pause") == {"status": "paused"} and post(server, "resume")
    running, hurt = streams(server), doors(server)[0]
    hurt.send_signal(number)
    gone([hurt])
    until(lambda: any(not stream.is_alive() for stream in running), "nobody noticed")
    doors(server)
    until(lambda: server.health().status_code == 200, "no health")
    left = [stream for stream in running if stream.is_alive()]
    until(lambda: httpx.get(f"{server.url}/load").json()["server_load"] == len(left), "the dead are counted")
    assert left, "both doors had some"
    assert figure(server, "vllm:num_requests_running") == len(left)
    assert post(server, "abort_requests", json={})["aborted"] == len(left)
    for stream in left:
        assert stream.whole()[-1]["choices"][0]["finish_reason"] == "abort"
    assert {server.complete(max_tokens=1).status_code for _ in range(MANY)} == {200}
    all_is_free(server)


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_doors_outlive_the_process_they_are_forked_from(server: Live) -> None:
    """Their streams go on to the end; another is begun, and forks a door when one is lost."""
    (forks,) = server.below("sundog doors")
    before = doors(server)
    streams = [Stream(server, max_tokens=400, ignore_eos=True) for _ in range(MANY)]
    for stream in streams:
        stream.begun.wait()
    forks.kill()
    for stream in streams:
        assert stream.whole()[-1]["choices"][0]["finish_reason"] == "length"
    until(lambda: forks not in server.below("sundog doors"), "no other is begun")
    assert doors(server) == before
    before[0].kill()
    until(lambda: before[0] not in doors(server) and answers(server), "no door is back")
    assert before[1] in doors(server)
    all_is_free(server)


def answers(server: Live) -> bool:
    """Whether both doors are there, and answer."""
    try:
        return {server.complete(max_tokens=1).status_code for _ in range(MANY)} == {200}
    except httpx.TransportError:
        return False


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_a_server_with_doors_stops_in_two_steps() -> None:
    """Streams go on to their ends at each door, new requests are turned away, and nothing is left."""
    with live(*SERVE) as server:
        running = [Stream(server, max_tokens=300, ignore_eos=True) for _ in range(MANY)]
        for stream in running:
            stream.begun.wait()
        left = psutil.Process(server.process.pid).children(recursive=True)
        server.hurt(signal.SIGTERM)
        server.until_health(503)
        refused = server.complete(max_tokens=1)
        assert refused.status_code == 503 and refused.headers["Retry-After"] == "1"
        for stream in running:
            assert stream.whole()[-1]["choices"][0]["finish_reason"] == "length"
        assert server.ended() == 0
        assert not psutil.wait_procs(left, STOP_S)[1]


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_a_second_signal_cuts_every_door_at_once() -> None:
    """Whatever runs, long before the grace; the log has no traceback."""
    # Steps so long that no stream ends by itself where a busy machine lets the test wait.
    with live(*SERVE, "--grace", "300", "--step-scale", "20") as server:
        running = streams(server)
        left = psutil.Process(server.process.pid).children(recursive=True)
        server.hurt(signal.SIGINT)
        server.until_it_says("stopping")
        server.hurt(signal.SIGINT)
        assert server.ended() == 130
        assert not psutil.wait_procs(left, STOP_S)[1]
        for stream in running:
            stream.join(START_S)
            assert stream.events[-1] != "[DONE]"
    assert not [line for line in server.said if "Traceback" in line], server.said


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_a_server_with_doors_that_is_killed_leaves_none() -> None:
    """kill -9, under load; the port is free again."""
    with live(*SERVE) as server:
        port, running = server.port, Fragile(server, **LONG)
        running.begun.wait()
        left = psutil.Process(server.process.pid).children(recursive=True)
        assert len(left) == 3
        server.hurt(signal.SIGKILL)
        assert not psutil.wait_procs(left, STOP_S)[1]
        with socket.create_server(("127.0.0.1", port)):
            pass
