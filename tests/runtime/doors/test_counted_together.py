"""Limits of a key across doors, and the keys and trace spans of each door."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.actors.api.test_live_spans import PARENT, TRACE, TRACED, Collector, collecting
from tests.live import EMULATED, START_S, Live, live
from tests.runtime.doors.test_doors import MANY, all_is_free, doors, until

MOST = 3
ALICE = f'[[key]]\nkey = "sk-alice"\ntenant = "alice"\nmax_requests = {MOST}\n'
BOB = '[[key]]\nkey = "sk-bob"\n'
EVE = '[[key]]\nkey = "sk-eve"\n'
BODY = {"prompt": "Once", "max_tokens": 2}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys.toml"


@pytest.fixture(scope="module")
def server(keys: Path, collector: Collector) -> Iterator[Live]:
    keys.write_text(ALICE + BOB)
    counting = ("--api-keys", str(keys))
    traced = ("--otlp-traces-endpoint", f"{collector.url}/v1/traces")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")  # milliseconds; OpenTelemetry's own variable
        with live(*EMULATED, "--api-processes", "2", *counting, *traced) as running:
            yield running
            assert not [line for line in running.said if "Traceback" in line or "sk-" in line], running.said
            assert running.stop() == 0


def ask(server: Live, key: str, **headers: str) -> httpx.Response:
    """Over a connection of its own, at any door."""
    headers["Authorization"] = f"Bearer {key}"
    return httpx.post(f"{server.url}/v1/completions", json=BODY, headers=headers, timeout=START_S)


def statuses(server: Live, key: str) -> set[int]:
    """At all doors, most likely."""
    return {ask(server, key).status_code for _ in range(MANY)}


def begin(server: Live, stack: ExitStack) -> None:
    """A long answer to alice."""
    body = BODY | {"max_tokens": 4000, "ignore_eos": True, "stream": True}
    headers = {"Authorization": "Bearer sk-alice"}
    client = stack.enter_context(httpx.Client(timeout=START_S))
    answer = client.stream("POST", f"{server.url}/v1/completions", json=body, headers=headers)
    assert stack.enter_context(answer).status_code == 200


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_a_key_has_as_many_answers_as_it_may_at_all_doors(server: Live) -> None:
    """A door that is killed gives its own back, and a client that leaves does, too."""
    with ExitStack() as stack:
        for _ in range(MOST):
            begin(server, stack)
        assert statuses(server, "sk-alice") == {429}
        assert int(ask(server, "sk-alice").headers["retry-after"]) > 0
        assert statuses(server, "sk-bob") == {200}
        for door in doors(server):
            door.kill()
            door.wait(START_S)
        until(lambda: len(doors(server)) == 2, "doors are back")
        until(lambda: reachable(server), "a door listens")
        with ExitStack() as more:
            for _ in range(MOST):
                begin(server, more)
            assert statuses(server, "sk-alice") == {429}
        until(lambda: ask(server, "sk-alice").status_code == 200, "clients that left are not counted")
    all_is_free(server)


def reachable(server: Live) -> bool:
    try:
        return {ask(server, "sk-bob").status_code for _ in range(MANY)} == {200}
    except httpx.TransportError:
        return False


@pytest.mark.long(reason="begins a server of several doors; test_doors.py begins one")
def test_keys_change_at_every_door(server: Live, keys: Path) -> None:
    """By SIGHUP; a file that is wrong changes nothing, at a door that begins meanwhile, too."""
    assert statuses(server, "sk-eve") == {401}
    keys.write_text(ALICE + BOB + EVE)
    server.hurt(signal.SIGHUP)
    server.until_it_says("are read again")
    until(lambda: statuses(server, "sk-eve") == {200}, "all doors know eve")
    keys.write_text("[[key]]\n")
    server.hurt(signal.SIGHUP)
    server.until_it_says("the old keys remain in use")
    doors(server)[0].kill()
    until(lambda: len(doors(server)) == 2 and reachable(server), "a door is back")
    assert statuses(server, "sk-eve") == statuses(server, "sk-bob") == {200}


def test_spans_of_a_door_and_of_the_engine_are_of_one_trace(server: Live, collector: Collector) -> None:
    assert ask(server, "sk-bob", **TRACED).status_code == 200

    def found() -> dict[str, list[object]]:
        named = collector.named()
        return {name: [s for s in spans if s.trace_id.hex() == TRACE] for name, spans in named.items()}

    until(lambda: found().get("POST /v1/completions") and found().get("llm_request"), "both spans")
    (outer,), (inner,) = found()["POST /v1/completions"], found()["llm_request"]
    assert outer.parent_span_id.hex() == PARENT and inner.parent_span_id == outer.span_id
