"""Safety of client data: no request ends the server, and stored data belongs to its key."""

import gc
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import trio
from werkzeug.datastructures import Headers

from sundog.actors.api.crowding import BodiesUnderWay
from sundog.actors.api.errors import ApiError
from sundog.actors.api.own_rows import OTHER
from sundog.actors.api.requests import ApiRequest
from sundog.actors.api.stored import StoredResponse, StoredResponses, size_of
from sundog.actors.core.params.sampling import Sampling
from sundog.actors.front.codec import Vocabulary
from sundog.actors.front.foreign import contained
from sundog.actors.front.prompts import read_prompt
from sundog.actors.messages import PLAIN_READING, ChatMessage, Generate, Reading, Refused
from tests.actors.fakes import Bytes
from tests.live import EMULATED, Live, live


class Panic(BaseException):
    """Stands for `pyo3_runtime.PanicException`, which no import gives."""


class Panicking:
    """A codec whose every method fails as a panic in Rust does."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def fail(*args: object, **kwargs: object) -> Any:
            def work() -> Any:
                raise Panic("called `Option::unwrap()` on a `None` value")

            return contained(work)

        return fail


@pytest.mark.parametrize("exit_of_python", [KeyboardInterrupt, SystemExit, GeneratorExit, ValueError])
def test_what_python_ends_with_passes_the_seam_unchanged(exit_of_python: type[BaseException]) -> None:
    def work() -> None:
        raise exit_of_python

    with pytest.raises(exit_of_python):
        contained(work)


def test_a_panic_in_foreign_code_is_the_refusal_of_one_prompt() -> None:
    """In each of the ways in which a prompt is read."""
    codec, vocabulary = Panicking(), Vocabulary(size=100)
    chat = (ChatMessage("user", "hi"),)
    for prompt, reading in (
        ("text", PLAIN_READING),
        ("text", Reading(truncate_prompt_tokens=3)),
        (chat, PLAIN_READING),
    ):
        generate = Generate(prompt=prompt, sampling=Sampling(), reading=reading)
        refused = read_prompt(generate, codec, vocabulary, 50, "at most 50")  # type: ignore[arg-type]  # a fake
        assert isinstance(refused, Refused) and refused.kind == "invalid", refused
        assert "Option::unwrap" in refused.reason


@pytest.mark.wall_clock
async def test_a_panic_in_foreign_code_is_a_400_on_every_route_that_reads_text(serving: Any) -> None:
    async with serving(codec=Panicking()) as site, httpx.AsyncClient(base_url=site.url) as client:
        chat: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
        for path, body in (
            ("/tokenize", {"prompt": "hi"}),
            ("/tokenize", chat),
            ("/detokenize", {"tokens": [1, 2]}),
            ("/v1/messages/count_tokens", chat | {"model": "tiny/story"}),
            ("/v1/responses/input_tokens", {"input": "hi"}),
        ):
            answer = await client.post(path, json=body)
            assert answer.status_code == 400, (path, answer.text)
            assert "fails at it" in answer.json()["error"]["message"]
        assert (await client.get("/health")).status_code == 200


# --- stored responses -------------------------------------------------------------------------------

KEYS = """
[[key]]
key = "sk-alice"
tenant = "alice"
max_requests = 2

[[key]]
key = "sk-bob"
"""
ALICE, BOB, ADMIN = ({"Authorization": f"Bearer {key}"} for key in ("sk-alice", "sk-bob", "boss"))


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """An emulated server with two keys."""
    file = tmp_path_factory.mktemp("keys") / "keys.toml"
    file.write_text(KEYS)
    with live(*EMULATED, "--api-keys", str(file), "--admin-key", "boss") as server:
        yield server
        server.assert_sound()
        assert server.stop() == 0


def test_a_stored_response_is_its_owners_alone(keyed: Live) -> None:
    """Another key cannot read, continue, cancel or delete it; the answer is that of an id that never was."""
    with httpx.Client(base_url=keyed.url, timeout=60) as client:
        made = client.post("/v1/responses", json={"input": "secret", "max_output_tokens": 3}, headers=ALICE)
        name = made.json()["id"]
        following = {"input": "go on", "previous_response_id": name, "max_output_tokens": 3}
        tries = [
            client.get(f"/v1/responses/{name}", headers=BOB),
            client.post("/v1/responses", json=following, headers=BOB),
            client.post("/v1/responses/input_tokens", json=following, headers=BOB),
            client.post(f"/v1/responses/{name}/cancel", json={}, headers=BOB),
            client.delete(f"/v1/responses/{name}", headers=BOB),
        ]
        never = client.get("/v1/responses/resp_never", headers=BOB).json()["error"]["message"]
        for each in tries:
            assert each.status_code == 404, each.text
            assert each.json()["error"]["message"] == never.replace("resp_never", name)
        assert client.get(f"/v1/responses/{name}", headers=ALICE).status_code == 200
        assert client.post("/v1/responses", json=following, headers=ALICE).status_code == 200
        assert client.delete(f"/v1/responses/{name}", headers=ALICE).status_code == 200


def test_responses_under_one_request_id_are_kept_side_by_side(keyed: Live) -> None:
    """Agents give all calls of a run one X-Request-Id."""
    headers = ALICE | {"X-Request-Id": "run-7"}
    with httpx.Client(base_url=keyed.url, timeout=60) as client:
        bodies = [{"input": text, "max_output_tokens": 2} for text in ("first", "second")]
        names = [client.post("/v1/responses", json=body, headers=headers).json()["id"] for body in bodies]
        assert len(set(names)) == 2 and all(name.startswith("resp_run-7-") for name in names)
        assert all(client.get(f"/v1/responses/{name}", headers=ALICE).status_code == 200 for name in names)


def test_the_live_page_names_a_holders_own_requests_alone(keyed: Live) -> None:
    """The admin key sees all of them."""
    body = {"prompt": "Once", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with (
        httpx.Client(base_url=keyed.url, timeout=60) as client,
        client.stream("POST", "/v1/completions", json=body, headers=ALICE | {"X-Request-Id": "hers"}) as one,
    ):
        assert one.status_code == 200
        seen = {}
        for name, headers in (("alice", ALICE), ("bob", BOB), ("admin", ADMIN)):
            with client.stream("GET", "/dashboard/events", headers=headers) as page:
                assert page.status_code == 200
                for line in page.iter_lines():
                    if line.startswith("data: {") and '"running":[{' in line:
                        seen[name] = line
                        break
        assert "hers" in seen["alice"] and "hers" in seen["admin"]
        assert "hers" not in seen["bob"] and "alice" not in seen["bob"] and OTHER in seen["bob"]


def test_work_on_the_tokenizer_counts_as_an_answer_of_its_key(torch_keyed: Live) -> None:
    """With both of its answers under way, a key's text is not tokenised, either."""
    body = {"prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True}
    with httpx.Client(base_url=torch_keyed.url, timeout=60) as client:
        ask = {"json": {"prompt": "hi"}, "headers": ALICE}
        assert client.post("/tokenize", **ask).status_code == 200  # type: ignore[arg-type]  # plain fields
        with (
            client.stream("POST", "/v1/completions", json=body, headers=ALICE),
            client.stream("POST", "/v1/completions", json=body, headers=ALICE),
        ):
            assert client.post("/tokenize", **ask).status_code == 429  # type: ignore[arg-type]  # as above


@pytest.fixture(scope="module")
def torch_keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """The embedded model behind two keys."""
    pytest.importorskip("torch", reason="the engine extra is not installed")
    file = tmp_path_factory.mktemp("keys") / "keys.toml"
    file.write_text(KEYS)
    with live("sundog", "serve", "--port", "0", "--api-keys", str(file)) as server:
        yield server
        server.assert_sound()
        assert server.stop() == 0


class Nothing:
    """A response of which only the place matters."""


def stored(num_bytes: int) -> StoredResponse:
    return StoredResponse(Nothing(), [], "r", num_bytes)  # type: ignore[arg-type]  # as above


def test_what_is_kept_is_bounded_in_bytes_for_all_and_for_each_key() -> None:
    """The oldest of the owner goes, then the oldest of the largest holder; others' stay."""
    kept = StoredResponses(most_bytes=100, most_bytes_of_a_key=60)
    for number in range(4):
        kept.keep("alice", f"a{number}", stored(25))
    assert kept.num_bytes == 50
    with pytest.raises(Exception, match="no response"):
        kept.get("alice", "a1")
    kept.keep("bob", "b", stored(40))
    assert kept.get("alice", "a2") and kept.get("alice", "a3") and kept.num_bytes == 90
    kept.keep("carol", "c", stored(20))
    assert kept.num_bytes == 85 and kept.get("bob", "b") and kept.get("carol", "c")
    with pytest.raises(Exception, match="no response"):
        kept.get("alice", "a2")
    with pytest.raises(Exception, match="at most 60 are stored"):
        kept.check_room("carol", 61)
    kept.forget("bob", "b")
    assert kept.num_bytes == 45


def test_small_values_count_as_what_they_take_in_memory() -> None:
    body = json.dumps({"input": [{"a": [1]}] * 100}).encode()
    assert size_of(body) > len(body) + 100 * 2 * 128


# --- bodies under way -------------------------------------------------------------------------------


def part_of(path: str, length: int, part: int) -> bytes:
    """The head of a request with `length` bytes of body, and the first `part` of them."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {length}\r\n\r\n"
    return head.encode() + b" " * part


@pytest.mark.wall_clock
async def test_bodies_under_way_are_bounded_in_bytes(serving: Any) -> None:
    """A large one is refused beside one that is on its way, and has room when that one has left."""
    async with serving(max_body_bytes=200_000) as site:
        site.bodies.most_bytes = 100_000
        slow = await site.connect()
        await slow.send_all(part_of("/v1/completions", 90_000, 75_000))
        while site.bodies.num_bytes < 75_000:
            await trio.sleep(0.002)
        async with httpx.AsyncClient(base_url=site.url, timeout=30) as client:
            large = {"prompt": "x" * 40_000, "max_tokens": 1}
            refused = await client.post("/v1/completions", json=large)
            assert refused.status_code == 503 and "retry-after" in refused.headers, refused.text
            small = await client.post("/v1/completions", json={"prompt": "hi", "max_tokens": 1})
            assert small.status_code == 200
            while site.bodies.num_bytes > 75_000:  # until the small one's request is over
                await trio.sleep(0.002)
            await slow.aclose()
            while site.bodies.num_bytes:
                await trio.sleep(0.002)
            assert (await client.post("/v1/completions", json=large)).status_code == 200
        while site.bodies.num_bytes:  # until the last request is over
            await trio.sleep(0.002)


@pytest.mark.wall_clock
async def test_the_body_of_a_request_that_is_refused_is_not_kept(serving: Any) -> None:
    """Without a key, whatever it sends."""
    async with serving(api_key="k", body_timeout_s=5.0) as site:
        stream = await site.connect()
        await stream.send_all(part_of("/v1/completions", 4_000_000, 3_000_000))
        await trio.sleep(0.2)
        assert site.bodies.num_bytes == 0
        await stream.aclose()


async def test_what_arrives_after_the_end_of_a_request_is_not_counted() -> None:
    """Nobody would release it."""
    bodies = BodiesUnderWay()
    request = ApiRequest(
        *(bodies, "POST", "http", "/", b"", Headers(), "", "1.1", {}), send_push_promise=None
    )
    request.take(b"abc", is_last=False)
    assert bodies.num_bytes == 3
    request.at_end.close()
    request.take(b"def", is_last=True)
    assert bodies.num_bytes == 0


class Sent:
    """A request of which only the key and the body's bytes matter."""

    def __init__(self, owner: str | None) -> None:
        self.owner, self.num_body_bytes = owner, 0


def test_the_bodies_of_one_key_leave_room_for_those_of_others() -> None:
    bodies = BodiesUnderWay(most_bytes=100, most_bytes_of_a_key=40)
    first, second, other, without = Sent("a"), Sent("a"), Sent("b"), Sent(None)
    assert bodies.add(first, 30) and bodies.add(first, 5) and not bodies.add(second, 10)
    assert bodies.add(other, 35) and bodies.add(without, 30) and not bodies.add(without, 1)
    bodies.release(first)
    bodies.release(first)
    assert bodies.num_bytes == 65 and bodies.add(second, 35) and not bodies.add(second, 1)


LARGE = "z" * 400_000
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "a field": ("/v1/responses", {"input": "x", "user": LARGE}),
    "a field of metadata": ("/v1/responses", {"input": "x", "metadata": {"a": LARGE}}),
    "a stop": ("/v1/completions", {"prompt": "x", "stop": LARGE}),
    "a model": ("/v1/completions", {"prompt": "x", "model": LARGE}),
    "a type": ("/v1/completions", {"prompt": {"a": LARGE}}),
    "messages": ("/v1/chat/completions", {"messages": [{"role": LARGE, "content": "x"}]}),
    "half a character": ("/tokenize", {"prompt": LARGE + "\ud800"}),
    "too many tokens": ("/tokenize", {"prompt": "z" * 600_000}),
    "no such token": ("/detokenize", {"tokens": [1] * 200_000 + [2**30]}),
}


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.wall_clock
@pytest.mark.parametrize("name", REFUSED)
async def test_a_body_that_is_refused_is_freed_with_its_request(serving: Any, name: str) -> None:
    """And does not wait, in a cycle of frames and errors, for the next collection of garbage."""
    path, body = REFUSED[name]
    async with serving(codec=Bytes()) as site, httpx.AsyncClient(base_url=site.url) as client:
        data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
        for _ in range(2):  # the first time fills what is kept for later
            gc.collect()
            gc.disable()
            answer = await client.post(path, content=data, headers=headers)
            await client.get("/health")
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            gc.set_debug(0)
            gc.enable()
            kept = [each for each in gc.garbage if isinstance(each, ApiError | ApiRequest | ValueError)]
            gc.garbage.clear()
        assert 400 <= answer.status_code < 500 and not kept, (answer.text, kept)


# --- the log ----------------------------------------------------------------------------------------


@pytest.mark.wall_clock
def test_no_line_of_the_log_grows_with_what_a_client_sends() -> None:
    """Ids, names, paths and unknown fields, of refused requests and of answered ones."""
    large, header = "y" * 1_000_000, "y" * 30_000
    named = {"prompt": "hi", "max_tokens": 1}
    with live(*EMULATED, "--debug") as server:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            for name in ("model", "request_id", "tenant", "session", "user", "stop", "prompt", large):
                client.post("/v1/completions", json=named | {name: large})
            for name in ("X-Request-Id", "X-Tenant", "X-Session-Id", "X-Vllm-Priority"):
                client.post("/v1/completions", json=named, headers={name: header})
            for name in ("model", "metadata", "previous_response_id"):
                client.post("/v1/responses", json={"input": "hi", "max_output_tokens": 1, name: large})
            client.post(f"/v1/{header}", json=named)
            longest = {"request_id": "i" * 1000, "tenant": "t" * 1000}
            assert client.post("/v1/completions", json=named | longest).status_code == 200
        assert server.stop() == 0
    lines = server.said
    assert any("i" * 250 in line for line in lines) and max(map(len, lines)) < 1500, max(lines, key=len)
