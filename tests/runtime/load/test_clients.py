"""Load clients send by their trace's schedule whatever the server does, and record what happened."""

import errno
import math

import pytest
import trio

from sundog.runtime.load.clients import GONE_S, LEAD_S, ServerGone
from sundog.sim.trace.record import TraceRequest
from tests.runtime.load.servers import Asked, Notes, Script, clients, played, scripted

Row = TraceRequest


async def test_a_slow_server_does_not_make_its_clients_late() -> None:
    """Each is sent at its arrival, and its time to the first token counts from there."""

    async def slow(asked: Asked) -> None:
        await asked.tokens(5.0, 0.25)

    notes = await played(slow, [Row(f"r{i}", 0.1 * i, 20, 3) for i in range(10)])
    for index, outcome in enumerate(notes.outcomes.values()):
        assert outcome.due_s == pytest.approx(0.1 * index)
        assert outcome.sent_s == pytest.approx(outcome.due_s)
        assert outcome.first_s - outcome.due_s == pytest.approx(5.0)
        assert list(outcome.gaps_s) == pytest.approx([0.25, 0.25])
        assert (outcome.end, outcome.num_prompt_tokens, outcome.num_output_tokens) == ("length", 20, 3)


async def test_lateness_of_the_client_is_measured_and_stays_in_the_figures() -> None:
    """A request is due when its trace says, though it takes two seconds to connect."""
    notes = Notes()
    async with scripted(lambda asked: asked.tokens(1.0)) as server:
        at_once = server.network.connect

        async def connect() -> trio.abc.Stream:
            await trio.sleep(2.0)
            return await at_once()

        server.network.connect = connect
        await clients(server.client, notes).play([Row("a", 0.0, 4, 1)])
    outcome = notes.outcomes["a"]
    assert (outcome.due_s, outcome.sent_s) == (0.0, pytest.approx(2.0 - LEAD_S))
    assert outcome.first_s == pytest.approx(outcome.sent_s + 1.0)


async def test_opening_a_connection_is_no_part_of_a_request() -> None:
    """It is open before the request is due, and nothing of the request is sent before then."""
    begun = math.nan

    async def note(asked: Asked) -> None:
        nonlocal begun
        begun = trio.current_time()
        await asked.tokens(0.0)

    notes = Notes()
    async with scripted(note) as server:
        at_once = server.network.connect

        async def connect() -> trio.abc.Stream:
            await trio.sleep(LEAD_S / 2)
            return await at_once()

        server.network.connect = connect
        start_s = trio.current_time() + LEAD_S
        await clients(server.client, notes).play([Row("a", 1.0, 4, 1)])
    assert (notes.outcomes["a"].sent_s, begun - start_s) == (pytest.approx(1.0), pytest.approx(1.0))


@pytest.mark.parametrize(("kept_s", "num_connected"), [(100.0, 1), (0.0, 2)])
async def test_a_connection_that_was_idle_for_long_is_not_used_again(
    kept_s: float, num_connected: int
) -> None:
    """A server that closes idle ones after five seconds may do so while a request is on its way."""
    made = 0
    async with scripted(lambda asked: asked.tokens(0.0), kept_s) as server:
        at_once = server.network.connect

        async def connect() -> trio.abc.Stream:
            nonlocal made
            made += 1
            return await at_once()

        server.network.connect = connect
        await clients(server.client, Notes()).play([Row("a", 1.0, 4, 1), Row("b", 2.0, 4, 1)])
    assert made == num_connected


async def test_no_cookie_ties_the_load_to_one_server() -> None:
    """A balancer that sets one would send all that follows to the same replica."""
    seen: list[str | None] = []

    async def sets(asked: Asked) -> None:
        seen.append(asked.headers.get("cookie"))
        await asked.answer(429, "full", Set_Cookie="replica=1; Path=/")

    await played(sets, [Row("a", 1.0, 4, 1), Row("b", 2.0, 4, 1)])
    assert seen == [None, None]


async def test_a_closed_loop_has_no_more_requests_than_clients() -> None:
    """The next is due when a client has its answer."""
    at_once = most = 0

    async def count(asked: Asked) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await trio.sleep(1.0)
        at_once -= 1
        await asked.tokens(0.0)

    notes = await played(count, [Row(f"r{i}", 0.0, 4, 1) for i in range(7)], num_clients=3)
    assert most == 3
    assert [round(outcome.due_s) for outcome in notes.outcomes.values()] == [0, 0, 0, 1, 1, 1, 2]


@pytest.mark.parametrize("num_clients", [None, 1])
async def test_a_turn_waits_for_the_answer_and_its_pause(num_clients: int | None) -> None:
    """And is due then, however long the server took."""

    async def slow(asked: Asked) -> None:
        await asked.tokens(3.0)

    turns = [
        Row("s.0", 0.0, 4, 1, session="s"),
        Row("s.1", 0.5, 8, 1, session="s", after=("s.0",), pause_s=0.5),
        Row("s.2", 1.0, 9, 1, session="s", after=("s.1",), pause_s=2.0),
    ]
    notes = await played(slow, turns, num_clients)
    assert [round(outcome.due_s, 3) for outcome in notes.outcomes.values()] == [0.0, 3.5, 8.5]


@pytest.mark.parametrize("has_usage", [True, False])
async def test_empty_chunks_beyond_all_tokens_are_no_tokens(has_usage: bool) -> None:
    """Some servers send one before each token and one behind the last; without usage nobody can tell."""

    def piece(text: str, reason: str | None = None) -> dict[str, object]:
        return {"choices": [{"index": 0, "text": text, "finish_reason": reason}]}

    async def script(asked: Asked) -> None:
        await asked.begin()
        for _ in range(3):
            await asked.event(piece(""))
            await trio.sleep(1.0)
            await asked.event(piece("a"))
        await asked.event(piece("", "length"))
        if has_usage:
            await asked.end(4, 3)
        else:
            await asked.event("[DONE]")
            await asked.write(b"0\r\n\r\n")

    outcome = (await played(script, [Row("a", 0.0, 4, 3)])).outcomes["a"]
    assert (outcome.end, outcome.num_output_tokens) == ("length", 3 if has_usage else 7)
    assert outcome.first_s == pytest.approx(1.0 if has_usage else 0.0)
    assert list(outcome.gaps_s) == pytest.approx([1.0, 1.0] if has_usage else [1.0, 0.0, 1.0, 0.0, 1.0, 0.0])


async def test_empty_chunks_may_be_tokens_whose_text_comes_later() -> None:
    """As many chunks as tokens: each is one, and its instant counts."""

    async def script(asked: Asked) -> None:
        await asked.begin()
        for index, text in enumerate(("a", "", "b")):
            await asked.event(
                {"choices": [{"text": text, "finish_reason": "length" if index == 2 else None}]}
            )
            await trio.sleep(1.0)
        await asked.end(4, 3)

    outcome = (await played(script, [Row("a", 0.0, 4, 3)])).outcomes["a"]
    assert (outcome.num_chunks, list(outcome.gaps_s)) == (3, pytest.approx([1.0, 1.0]))


async def _refused(asked: Asked) -> None:
    await asked.answer(429, {"error": {"message": "too many"}}, Retry_After="7")


async def _broken(asked: Asked) -> None:
    await asked.answer(500, {"error": {"message": "a bug"}})


async def _wants_key(asked: Asked) -> None:
    await asked.answer(401, "Unauthorized")


async def _no_stream(asked: Asked) -> None:
    await asked.answer(200, {"choices": [{"text": "whole"}]})


async def _not_json(asked: Asked) -> None:
    await asked.begin()
    await asked.event("<html>")


async def _half(asked: Asked) -> None:
    await asked.begin()
    await asked.token()
    raise ConnectionAbortedError


async def _early_done(asked: Asked) -> None:
    await asked.begin()
    await asked.token()
    await asked.event("[DONE]")
    await asked.write(b"0\r\n\r\n")


async def _says_error(asked: Asked) -> None:
    await asked.begin()
    await asked.token()
    await asked.event({"error": {"message": "the engine died"}})


async def _hangs_up(asked: Asked) -> None:
    raise ConnectionAbortedError


async def _stalls(asked: Asked) -> None:
    await asked.begin()
    await asked.token()
    await trio.sleep(100)


@pytest.mark.parametrize(
    ("script", "end", "trouble", "reason"),
    [
        (_refused, "refused", "HTTP 429", "too many"),
        (_broken, "error", "HTTP 500", "a bug"),
        (_wants_key, "error", "HTTP 401", "Unauthorized"),
        (_no_stream, "error", "malformed answer", "no stream"),
        (_not_json, "error", "malformed answer", "not JSON: <html>"),
        (_half, "error", "cut stream", ""),
        (_early_done, "error", "cut stream", "before its answer did"),
        (_says_error, "error", "error in the stream", "the engine died"),
        (_hangs_up, "error", "connection lost", ""),
        (_stalls, "abort", "timeout", ""),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
async def test_trouble_is_counted_by_its_kind(script: Script, end: str, trouble: str, reason: str) -> None:
    """The request ends with it, at once or at its timeout, and the next one is answered."""

    async def first_then_well(asked: Asked) -> None:
        if asked.headers["x-request-id"] == "bad":
            await script(asked)
        else:
            await asked.tokens(0.0)

    notes = await played(first_then_well, [Row("bad", 0.0, 4, 2), Row("good", 1.0, 4, 2)], timeout_s=10)
    bad, good = notes.outcomes["bad"], notes.outcomes["good"]
    assert (bad.end, bad.trouble) == (end, trouble)
    assert reason in bad.reason
    assert bad.end_s == pytest.approx(10.0 if trouble == "timeout" else 0.0)
    assert bad.retry_after_s == (7.0 if end == "refused" else None)
    assert (good.end, good.trouble) == ("length", None)


async def test_a_server_that_has_gone_ends_the_run() -> None:
    """After a while, and many attempts: what one attempt meets may pass."""
    rows = [Row(f"r{i}", float(i), 4, 1) for i in range(60)]

    async with scripted(_broken) as server:

        async def refuse() -> trio.abc.Stream:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

        server.network.connect, notes = refuse, Notes()
        with pytest.RaisesGroup(pytest.RaisesExc(ServerGone, match="Connection refused")):
            await clients(server.client, notes).play(rows)
    assert GONE_S <= len(notes.outcomes) <= GONE_S + 2
    assert all(math.isnan(outcome.sent_s) for outcome in notes.outcomes.values())


async def test_what_policies_read_goes_in_headers() -> None:
    """And nothing for what a row does not say."""
    seen: dict[str, dict[str, str]] = {}

    async def look(asked: Asked) -> None:
        seen[asked.headers["x-request-id"]] = asked.headers
        await asked.tokens(0.0)

    await played(look, [Row("a", 0.0, 4, 1, tenant="t", priority=2, slo_ttft_s=0.5), Row("b", 0.0, 4, 1)])
    assert {name: seen["a"][name] for name in ("x-tenant", "x-vllm-priority", "x-slo-ttft-s")} == {
        "x-tenant": "t",
        "x-vllm-priority": "2",
        "x-slo-ttft-s": "0.5",
    }
    assert not [name for name in seen["b"] if name.startswith(("x-t", "x-v", "x-s"))]


async def test_a_connection_is_used_again() -> None:
    """One after another, all requests go over the first."""
    num_connections = 0
    async with scripted(lambda asked: asked.tokens(0.0)) as server:
        at_once = server.network.connect

        async def connect() -> trio.abc.Stream:
            nonlocal num_connections
            num_connections += 1
            return await at_once()

        server.network.connect = connect
        body = b'{"max_tokens": 1, "prompt": [1]}'
        for _ in range(3):
            assert (await server.client.ask("POST", "/v1/completions", body)).status_code == 200
    assert num_connections == 1


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
async def test_events_are_cut_at_line_ends_alone(ends: str) -> None:
    """Wherever the parts of an answer end, and whatever else Unicode calls the end of a line."""
    tokens = ["\u2028", "\x85", "a\\n", "\u2029"]

    async def script(asked: Asked) -> None:
        await asked.begin()
        for index, text in enumerate(tokens):
            reason = '"length"' if index == len(tokens) - 1 else "null"
            event = f'data: {{"choices": [{{"text": "{text}", "finish_reason": {reason}}}]}}{ends}{ends}'
            for byte in event.encode():
                await asked.write(b"1\r\n%c\r\n" % byte)
            await trio.sleep(1.0)
        await asked.write(b"0\r\n\r\n")

    outcome = (await played(script, [Row("a", 0.0, 4, 4)])).outcomes["a"]
    assert (outcome.trouble, outcome.num_chunks) == (None, 4)
    assert list(outcome.gaps_s) == pytest.approx([1.0, 1.0, 1.0])
