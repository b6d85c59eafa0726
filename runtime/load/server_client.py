"""HTTP client of a server: an httpx client, its errors by kind, and the events of a streamed answer.

Server-Sent Events are split here from bytes: httpx's own lines also end at U+2028, which JSON may contain.
"""

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx
import trio

from sundog.actors.config import ConfigError

NO_CONNECTION = "no connection"
CONNECTION_LOST = "connection lost"
KEPT_S = 3.0
"""Seconds for which an idle connection is reused: uvicorn, vLLM's server, closes one after 5 s, when the
next request may already be in flight.
"""
MOST_PORT = 2**16 - 1
Event = Callable[[str, Mapping[str, object]], Awaitable[None]]
"""httpx's `trace` extension: awaited at each event of a request."""


class RequestFailed(Exception):
    """Raised for a request without a whole answer; `kind` is one of a few words, for counting."""

    def __init__(self, kind: str, reason: str = "") -> None:
        super().__init__(f"{kind}: {reason}" if reason else kind)
        self.kind, self.reason = kind, reason


@dataclass(slots=True)
class ServerClient:
    """Client of one server, which keeps connections between requests; `headers` go with each request.

    It can be used again after `close`, in another run of Trio or, pickled, in another process.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    transport: httpx.AsyncBaseTransport | None = None
    """Transport to the server; httpx's own if None."""
    kept_s: float = KEPT_S
    _http: httpx.AsyncClient | None = None

    @classmethod
    def of(cls, url: str, api_key: str | None = None) -> "ServerClient":
        """Return a client of the server at a URL, which may end in /v1; raises ConfigError."""
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise ConfigError("--api-key has a character that no HTTP header can carry: is it the whole key?")
        return cls(base_url(url), {} if api_key is None else {"Authorization": f"Bearer {api_key}"})

    @property
    def authority(self) -> str:
        """Host and port."""
        return httpx.URL(self.url).netloc.decode("ascii")

    @asynccontextmanager
    async def stream(
        self, path: str, body: bytes, headers: Mapping[str, str] | None = None, trace: Event | None = None
    ) -> AsyncIterator[httpx.Response]:
        """Send a body of JSON, and yield the answer once its headers are there. Raises RequestFailed."""
        fields = {"Content-Type": "application/json", **(headers or {})}
        extensions = {} if trace is None else {"trace": trace}
        with _failures():
            async with self._open.stream(
                "POST", path, content=body, headers=fields, extensions=extensions
            ) as response:
                yield response

    async def ask(self, method: str, path: str, body: bytes | None = None) -> httpx.Response:
        """Send one request, and return its whole answer. Raises RequestFailed."""
        fields = {} if body is None else {"Content-Type": "application/json"}
        with _failures():
            return await self._open.request(method, path, content=body, headers=fields)

    async def close(self) -> None:
        if self._http is not None:
            http, self._http = self._http, None
            await http.aclose()

    @property
    def _open(self) -> httpx.AsyncClient:
        if self._http is None:
            is_tls = self.url.startswith("https")
            self._http = httpx.AsyncClient(
                base_url=self.url,
                # An answer is read as it was sent: unpacking it would be measured, too.
                headers={"Accept-Encoding": "identity", **self.headers},
                # A cookie would tie all requests to one of several servers behind a balancer.
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
                timeout=None,
                limits=httpx.Limits(max_connections=None, keepalive_expiry=self.kept_s),
                # Without TLS nothing is verified, and reading the system's certificates takes 20 ms.
                verify=ssl.create_default_context() if is_tls else False,
                transport=self.transport,
            )
        return self._http


def base_url(url: str) -> str:
    """Return the URL before every route; raises ConfigError."""
    try:
        parts = httpx.URL(url.strip())
    except httpx.InvalidURL as error:
        raise ConfigError(f"{url} is no URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.host or (parts.port or 0) > MOST_PORT:
        raise ConfigError(f"{url} is no URL of a server: give one like http://127.0.0.1:8000")
    path = parts.path.rstrip("/").removesuffix("/v1")
    return str(parts.copy_with(path=path or "/", query=None, fragment=None))


async def events(response: httpx.Response) -> AsyncGenerator[list[bytes], None]:
    """Yield the data of the events of each part of an answer as it comes. Raises RequestFailed."""
    rest = b""
    with _failures():
        async with _parts(response) as parts:
            async for part in parts:
                *lines, rest = (rest + part).split(b"\n")
                yield [line[5:].strip() for line in lines if line.startswith(b"data:")]


async def whole(response: httpx.Response, most_bytes: int) -> bytes:
    """Read an answer to its end, and return at most its first `most_bytes` bytes. Raises RequestFailed."""
    body = b""
    with _failures():
        async with _parts(response) as parts:
            async for part in parts:
                body += part[: most_bytes - len(body)]
    return body


@asynccontextmanager
async def _parts(response: httpx.Response) -> AsyncIterator[AsyncIterator[bytes]]:
    parts = response.aiter_raw()
    try:
        yield parts
    finally:
        # httpx nests generators and closes the outermost alone: one that is left in the middle would be
        # collected, of which Trio warns. With the connection closed, all of them end.
        with trio.CancelScope(shield=True), suppress(httpx.HTTPError, httpx.StreamError):
            await response.aclose()
            async for _ in parts:
                pass


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except (httpx.ConnectError, httpx.ProxyError) as error:
        raise RequestFailed(NO_CONNECTION, _why(error)) from None
    except httpx.RequestError as error:
        raise RequestFailed(CONNECTION_LOST, _why(error)) from None


def _why(error: httpx.RequestError) -> str:
    found: BaseException = error
    while (cause := _cause(found)) is not None and getattr(found, "errno", None) is None:
        found = cause
    return (isinstance(found, OSError) and found.strerror) or str(found)


def _cause(error: BaseException) -> BaseException | None:
    if isinstance(error, BaseExceptionGroup):
        return error.exceptions[0]
    inner = error.args[0] if error.args else None
    return error.__cause__ or (inner if isinstance(inner, BaseException) else None)
