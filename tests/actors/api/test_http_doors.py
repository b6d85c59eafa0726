"""TLS, and requests from pages of other origins (CORS)."""

import json
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
import trustme
from h2.connection import H2Connection
from h2.events import ResponseReceived, StreamEnded

from sundog.actors.api.server_options import ServerOptions
from sundog.actors.config.http import HttpSettings, Tls
from sundog.actors.core.config import ConfigError
from sundog.options.door import ConnectionOptions
from tests.actors.api.hypercorns import SOON_S
from tests.actors.api.wire import GET
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
        self.multiplexing = ssl.create_default_context(cafile=self.ca)
        self.multiplexing.set_alpn_protocols(["h2"])
        self.shown = ssl.create_default_context(cafile=self.ca)
        authority.issue_cert("client@example.org").configure_cert(self.shown)

    async def connect(self, port: int) -> "trio.SSLStream[trio.SocketStream]":
        """Return a connection that speaks HTTP/2."""
        return await trio.open_ssl_over_tcp_stream(
            "127.0.0.1", port, ssl_context=self.multiplexing, https_compatible=True
        )

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


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
async def test_a_stream_comes_through_tls(serving: Any, certified: Certified) -> None:
    """Several times on one connection."""
    async with serving(settings=certified.settings()) as site:
        site.llm.gap_s = 0.002
        url = f"https://127.0.0.1:{site.port}"
        async with httpx.AsyncClient(verify=certified.trusting, base_url=url) as client:
            for _ in range(3):
                answer = await client.post("/v1/completions", json=ASKED)
                assert "".join(words(answer.text)) == "".join(f"w{index} " for index in range(8))


async def test_answers_share_a_connection_over_http2(serving: Any, certified: Certified) -> None:
    """20 at a time; one whose client leaves is cancelled, and the others go on."""
    async with serving(settings=certified.settings()) as site:
        site.llm.gap_s = 0.01
        url = f"https://127.0.0.1:{site.port}"
        limits = httpx.Limits(max_connections=1)
        async with httpx.AsyncClient(
            verify=certified.trusting, base_url=url, http2=True, limits=limits, timeout=HANGS_S
        ) as client:
            assert (await client.get("/health")).http_version == "HTTP/2"
            texts: list[str] = []

            async def ask() -> None:
                texts.append("".join(words((await client.post("/v1/completions", json=ASKED)).text)))

            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(ask)
            assert texts == ["".join(f"w{index} " for index in range(8))] * 20


async def test_a_stream_that_is_reset_is_cancelled(serving: Any, certified: Certified) -> None:
    """And its connection goes on."""
    async with serving(settings=certified.settings()) as site:
        site.llm.may_finish = trio.Event()
        secured = await certified.connect(site.port)
        connection, body = H2Connection(), json.dumps(ASKED).encode()
        connection.initiate_connection()
        head = [(":method", "POST"), (":scheme", "https"), (":authority", "x"), (":path", "/v1/completions")]
        for number in (1, 3):
            connection.send_headers(number, [*head, ("content-type", "application/json")])
            connection.send_data(number, body, end_stream=True)
        await secured.send_all(connection.data_to_send())
        await site.llm.until(lambda llm: len(llm.asked) == 2)
        connection.reset_stream(1)
        await secured.send_all(connection.data_to_send())
        await site.llm.until(lambda llm: len(llm.cancelled) == 1)
        site.llm.may_finish.set()
        ended: list[int] = []
        while not ended:
            events = connection.receive_data(bytes(await secured.receive_some()))
            ended = [event.stream_id for event in events if isinstance(event, StreamEnded)]
        assert ended == [3] and len(site.llm.cancelled) == 1
        await trio.aclose_forcefully(secured)


async def test_without_tls_http2_is_refused(serving: Any) -> None:
    """A client that begins with it is told to go away, and no other connection is hurt."""
    async with serving() as site, await site.connect() as other:
        connection = H2Connection()
        connection.initiate_connection()
        path = [(":method", "GET"), (":scheme", "http"), (":authority", "x"), (":path", "/health")]
        connection.send_headers(1, path, end_stream=True)
        async with await site.connect() as stream:
            await stream.send_all(connection.data_to_send())
            events: list[object] = []
            with suppress(trio.BrokenResourceError):
                while data := await stream.receive_some():
                    events += connection.receive_data(bytes(data))
        assert not [event for event in events if isinstance(event, ResponseReceived)]
        await other.send_all(GET)
        assert (await other.receive_some()).startswith(b"HTTP/1.1 200 ")


async def test_no_request_over_http2_ends_other_connections(serving: Any, certified: Certified) -> None:
    """Whatever one client sends, the others go on."""
    async with serving(settings=certified.settings()) as site:
        url = f"https://127.0.0.1:{site.port}"
        site.llm.gap_s = 0.02
        long = ASKED | {"max_tokens": 200}
        async with (
            httpx.AsyncClient(verify=certified.trusting, base_url=url, timeout=SOON_S) as client,
            client.stream("POST", "/v1/completions", json=long) as streamed,
        ):
            pieces = streamed.aiter_raw()
            await anext(pieces)
            connection = H2Connection()
            connection.initiate_connection()
            connection.send_headers(1, [(":method", "CONNECT"), (":authority", "x")], end_stream=True)
            secured = await certified.connect(site.port)
            await secured.send_all(connection.data_to_send())
            await trio.aclose_forcefully(secured)
            assert b"".join([piece async for piece in pieces]).endswith(b"[DONE]\n\n")


async def test_who_does_not_speak_tls_is_hung_up_on(serving: Any, certified: Certified) -> None:
    """Plain HTTP, noise, a client that trusts somebody else, and one that never greets."""
    async with serving(settings=certified.settings(greeting_s=0.2)) as site:
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
        (("nowhere.pem",), "--ssl-certfile nowhere.pem: No such file"),
        ((certified.cert, "nowhere.pem"), "--ssl-keyfile nowhere.pem: No such file"),
        ((certified.cert, str(other)), "a certificate in PEM and its key"),
        ((str(empty),), "a certificate in PEM and its key"),
        ((certified.cert, certified.key, str(empty)), "--ssl-ca-certs .* contains no certificate"),
    ]
    names = ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs")
    for files, message in wrong:
        with pytest.raises(ConfigError, match=message):
            ConnectionOptions(**dict(zip(names, files, strict=False))).of(ServerOptions())
    for half, message in (
        ({"ssl_keyfile": "key"}, "--ssl-keyfile is key"),
        ({"ssl_ca_certs": "ca"}, "--ssl-ca-certs is ca"),
        ({"ssl_cert_reqs": "2"}, "--ssl-cert-reqs is 2 without TLS"),
        ({"ssl_certfile": "cert", "ssl_cert_reqs": "1"}, "give --ssl-ca-certs"),
    ):
        with pytest.raises(ConfigError, match=message):
            ConnectionOptions(**half).of(ServerOptions())


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


async def test_too_many_or_too_long_headers_are_refused(serving: Any, exchange: Any) -> None:
    """431 by number, with the limit, and before the end of one too long; what is allowed is served."""
    async with serving(settings=HttpSettings(max_head_bytes=4096, max_headers=20)) as site:
        async with await site.connect() as stream:
            many = GET[:-2] + b"".join(b"A%d: b\r\n" % index for index in range(20)) + b"\r\n"
            status, _, body = await exchange(stream, many)
            assert status == 431 and "at most 20" in json.loads(body)["error"]["message"]
            assert (await exchange(stream, GET[:-2] + b"A: b\r\n" * 19 + b"\r\n"))[0] == 200
            status, _, body = await exchange(stream, GET[:-2] + b"A: " + b"b" * 5000 + b"\r\n\r\n")
            assert status == 431 and "4096 bytes" in json.loads(body)["error"]["message"]
        async with await site.connect() as stream:
            assert (await exchange(stream, GET[:-2] + b"A: " + b"b" * 5000))[0] == 431
