"""How a server may be reached: TLS, HTTP/2, from pages of other origins, and by how many connections."""

import json
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import h2.events
import httpx
import pytest
import trio
import trustme

from actors.api import HttpSettings
from actors.core.config import ConfigError
from actors.http.tls import Tls
from tests.actors.api.http2_client import Http2
from tests.actors.api.wire import GET, JSON, completion
from tests.patience import HANGS_S

pytestmark = pytest.mark.wall_clock

ASKED = {"prompt": "x", "stream": True, "max_tokens": 8}


class Certified:
    """Certificates, in files, that a server and its client have of one authority."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        own = authority.issue_cert("127.0.0.1")
        self.ca, self.cert, self.key = (str(folder / name) for name in ("ca.pem", "cert.pem", "key.pem"))
        authority.cert_pem.write_to_path(self.ca)
        own.cert_chain_pems[0].write_to_path(self.cert)
        own.private_key_pem.write_to_path(self.key)
        self.trusting = ssl.create_default_context(cafile=self.ca)
        self.shown = ssl.create_default_context(cafile=self.ca)
        authority.issue_cert("client@example.org").configure_cert(self.shown)

    def settings(self, **fields: Any) -> HttpSettings:
        return HttpSettings(tls=Tls(self.cert, self.key, self.ca, fields.pop("cert_reqs", 0)), **fields)


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Certified:
    return Certified(tmp_path_factory.mktemp("certificates"))


def words(answer: str) -> list[str]:
    """The texts of a stream's events, which must end well."""
    events = answer.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event[6:])["choices"][0]["text"] for event in events[:-2]]


@pytest.mark.parametrize(("http2", "version"), [(False, "HTTP/1.1"), (True, "HTTP/2")])
async def test_a_stream_comes_through_tls(
    serving: Any, certified: Certified, http2: bool, version: str
) -> None:
    """In the protocol that the client prefers, several times on one connection."""
    async with serving(settings=certified.settings()) as site:
        site.llm.gap_s = 0.002
        url = f"https://127.0.0.1:{site.port}"
        async with httpx.AsyncClient(http2=http2, verify=certified.trusting, base_url=url) as client:
            for _ in range(3):
                answer = await client.post("/v1/completions", json=ASKED)
                assert answer.http_version == version
                assert "".join(words(answer.text)) == "".join(f"w{index} " for index in range(8))


async def test_who_does_not_speak_tls_is_hung_up_on(serving: Any, certified: Certified) -> None:
    """Plain HTTP, noise, a client that trusts somebody else, and one that never greets."""
    async with serving(settings=certified.settings(head_s=0.2)) as site:
        for said in (GET, b"\x16\x03\x01\xff\xff" + b"\x00" * 99, b""):
            async with await site.connect() as stream:
                if said:
                    await stream.send_all(said)
                with suppress(trio.BrokenResourceError):
                    assert not (await stream.receive_some()).startswith(b"HTTP")
        async with httpx.AsyncClient() as client:
            with pytest.raises(httpx.ConnectError):
                await client.get(f"https://127.0.0.1:{site.port}/health")
        async with httpx.AsyncClient(verify=certified.trusting) as client:
            assert (await client.get(f"https://127.0.0.1:{site.port}/health")).status_code == 200


async def test_clients_may_have_to_show_a_certificate(serving: Any, certified: Certified) -> None:
    """One of the authority's; who shows none is not served."""
    async with serving(settings=certified.settings(cert_reqs=2)) as site:
        url = f"https://127.0.0.1:{site.port}/health"
        async with httpx.AsyncClient(verify=certified.shown) as client:
            assert (await client.get(url)).status_code == 200
        async with httpx.AsyncClient(verify=certified.trusting) as client:
            with pytest.raises((httpx.ReadError, httpx.ConnectError, httpx.RemoteProtocolError)):
                await client.get(url)


def test_a_certificate_that_is_none_is_refused_by_its_option(certified: Certified, tmp_path: Path) -> None:
    """Missing, another's key, no PEM; and half of what TLS needs."""
    other = tmp_path / "other.pem"
    trustme.CA().issue_cert("x").private_key_pem.write_to_path(str(other))
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    wrong: list[tuple[Any, str]] = [
        (Tls("nowhere.pem"), "--ssl-certfile nowhere.pem: No such file"),
        (Tls(certified.cert, "nowhere.pem"), "--ssl-keyfile nowhere.pem: No such file"),
        (Tls(certified.cert, str(other)), "no certificate in PEM and the key to it"),
        (Tls(str(empty)), "no certificate in PEM"),
        (Tls(certified.cert, certified.key, str(empty)), "--ssl-ca-certs .* holds no certificate"),
    ]
    for tls, message in wrong:
        with pytest.raises(ConfigError, match=message):
            tls.context()
    for half, message in (
        (("key", None, None, 0), "--ssl-keyfile is key"),
        ((None, None, "ca", 0), "--ssl-ca-certs is ca"),
        ((None, None, None, 2), "--ssl-cert-reqs is 2 without TLS"),
        ((None, "cert", None, 1), "give --ssl-ca-certs"),
    ):
        with pytest.raises(ConfigError, match=message):
            Tls.of(*half)


async def test_http2_is_spoken_without_tls_too(serving: Any) -> None:
    """To a client that begins with it; its streams are served side by side."""
    async with serving() as site, await site.connect() as stream:
        client = Http2(stream)
        site.llm.may_finish = trio.Event()
        held = await client.ask(json.dumps(ASKED).encode())
        await site.llm.until(lambda llm: len(llm.asked) == 1)
        whole = await client.ask(b'{"prompt": "x", "max_tokens": -1}')
        assert b"max_tokens" in await client.until(h2.events.StreamEnded, whole)
        site.llm.may_finish.set()
        body = await client.until(h2.events.StreamEnded, held)
        assert body.endswith(b"data: [DONE]\n\n")


async def test_a_stream_that_is_reset_is_cancelled_and_the_others_go_on(serving: Any) -> None:
    """As if its client had left; the connection lives."""
    async with serving() as site, await site.connect() as stream:
        client = Http2(stream)
        site.llm.may_finish = trio.Event()
        left, stays = (
            await client.ask(json.dumps(ASKED).encode()),
            await client.ask(json.dumps(ASKED).encode()),
        )
        await site.llm.until(lambda llm: len(llm.asked) == 2)
        client.http.reset_stream(left)
        await client.flush()
        await site.llm.until(lambda llm: len(llm.cancelled) == 1)
        site.llm.may_finish.set()
        assert (await client.until(h2.events.StreamEnded, stays)).endswith(b"data: [DONE]\n\n")
        assert len(site.llm.cancelled) == 1


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_window_that_never_opens_holds_up_neither_others_nor_the_end(
    serving: Any, leaves: bool
) -> None:
    """An answer waits for it, others are served, and the server stops, whether its client has left or not."""
    async with serving(grace_s=0.2) as site:
        stream = await site.connect()
        client = Http2(stream, window=0)
        await client.ask(json.dumps(ASKED).encode())
        await client.ask(b'{"prompt": "x", "max_tokens": 2}')
        await site.llm.until(lambda llm: len(llm.asked) == 2)
        async with httpx.AsyncClient() as other:
            answer = await other.post(f"{site.url}/v1/completions", json=ASKED)
            assert words(answer.text)[-1] == "w7 "
        if leaves:
            await trio.aclose_forcefully(stream)
        site.stop.set()
        with trio.fail_after(HANGS_S):
            await site.stopped.wait()
        await trio.aclose_forcefully(stream)


async def test_frames_for_nothing_end_the_connection_alone(
    serving: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Data after the answer, and a path that is no text: no traceback, no other request is hurt."""
    async with serving(max_body_bytes=100) as site:
        for path in ("/v1/completions", "/v1/\udcff"):
            async with await site.connect() as stream:
                client = Http2(stream)
                client.http.config.header_encoding = None
                number = client.http.get_next_available_stream_id()
                head = {
                    b":method": b"POST",
                    b":path": path.encode(errors="surrogateescape"),
                    b":scheme": b"http",
                }
                client.http.send_headers(number, list((head | {b":authority": b"x"}).items()))
                await client.flush()
                await trio.sleep(0.05)
                client.http.send_data(number, b"x" * 200)
                await client.flush()
                with trio.move_on_after(0.3):
                    while await stream.receive_some():
                        pass
            async with httpx.AsyncClient() as other:
                assert (await other.get(f"{site.url}/health")).status_code == 200
    assert "Traceback" not in caplog.text and "failed" not in caplog.text


ORIGIN = "https://app.example.com"
PREFLIGHT = {
    "Origin": ORIGIN,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}


async def test_pages_of_other_origins_may_not_call_unless_told(serving: Any) -> None:
    """No header of CORS without the option, and none for an origin that is not on the list."""
    async with serving() as site, httpx.AsyncClient(base_url=site.url) as client:
        for answer in (
            await client.get("/health", headers={"Origin": ORIGIN}),
            await client.options("/v1/completions", headers=PREFLIGHT),
        ):
            assert not [name for name in answer.headers if name.startswith("access-control")]
    async with (
        serving(settings=HttpSettings(allowed_origins=("https://other.example.com",))) as site,
        httpx.AsyncClient(base_url=site.url) as client,
    ):
        refused = await client.options("/v1/completions", headers=PREFLIGHT)
        assert refused.status_code == 400 and "--allowed-origins" in refused.json()["error"]["message"]
        answer = await client.get("/health", headers={"Origin": ORIGIN})
        assert "access-control-allow-origin" not in answer.headers and answer.headers["vary"] == "Origin"


@pytest.mark.parametrize(("origins", "shown"), [((ORIGIN,), ORIGIN), (("*",), "*")])
async def test_allowed_pages_may_ask_before_they_have_a_key(
    serving: Any, origins: tuple[str, ...], shown: str
) -> None:
    """Browsers send none with the question; errors and streams carry the permission, too."""
    async with (
        serving(settings=HttpSettings(allowed_origins=origins), api_key="secret") as site,
        httpx.AsyncClient(base_url=site.url, headers={"Origin": ORIGIN}) as client,
    ):
        asked = await client.options("/v1/completions", headers=PREFLIGHT)
        assert asked.status_code == 200 and "POST" in asked.headers["access-control-allow-methods"]
        assert asked.headers["access-control-allow-headers"] == "authorization,content-type"
        no_key = await client.post("/v1/completions", json=ASKED)
        streamed = await client.post(
            "/v1/completions", json=ASKED, headers={"Authorization": "Bearer secret"}
        )
        assert (no_key.status_code, streamed.status_code) == (401, 200)
        for answer in (asked, no_key, streamed):
            assert answer.headers["access-control-allow-origin"] == shown


async def test_an_address_has_no_more_connections_than_it_may(serving: Any, exchange: Any) -> None:
    """One more is told so and hung up on; when one has ended, another may come."""
    async with serving(settings=HttpSettings(max_connections=2)) as site:
        first, second = await site.connect(), await site.connect()
        for stream in (first, second):
            assert (await exchange(stream, GET))[0] == 200
        async with await site.connect() as third:
            status, headers, body = await exchange(third, completion())
            assert status == 429 and headers["retry-after"] == "1"
            assert "2 connections" in json.loads(body)["error"]["message"]
            assert await third.receive_some() == b""
        assert (await exchange(first, GET))[0] == 200 and not site.llm.asked
        await first.aclose()
        with trio.fail_after(HANGS_S):
            while True:
                async with await site.connect() as another:
                    if (await exchange(another, GET))[0] == 200:
                        break
        await second.aclose()


async def test_too_many_or_too_long_headers_are_refused(serving: Any, exchange: Any) -> None:
    """431 by number, with the limit, and before the end of one too long; what is allowed is served."""
    async with serving(settings=HttpSettings(max_head_bytes=4096, max_headers=20)) as site:
        async with await site.connect() as stream:
            many = GET[:-2] + b"".join(b"A%d: b\r\n" % index for index in range(20)) + b"\r\n"
            status, _, body = await exchange(stream, many)
            assert status == 431 and "at most 20" in json.loads(body)["error"]["message"]
            assert (await exchange(stream, GET[:-2] + b"A: b\r\n" * 19 + b"\r\n"))[0] == 200
        async with await site.connect() as stream:
            assert (await exchange(stream, GET[:-2] + b"A: " + b"b" * 5000))[0] == 431


async def test_a_head_that_has_begun_is_soon_given_up_and_an_idle_connection_is_kept(
    serving: Any, exchange: Any
) -> None:
    """The time is counted from its first byte, on a new connection and after an answer."""
    async with (
        serving(settings=HttpSettings(head_s=0.3)) as site,
        await site.connect() as idle,
        await site.connect() as slow,
    ):
        assert (await exchange(slow, GET))[0] == 200
        with trio.fail_after(HANGS_S), pytest.raises(trio.BrokenResourceError):
            for byte in JSON * 100:
                await slow.send_all(bytes([byte]))
                await trio.sleep(0.02)
        await trio.sleep(0.3)
        assert (await exchange(idle, GET))[0] == 200
        await trio.sleep(0.6)
        assert (await exchange(idle, GET))[0] == 200
