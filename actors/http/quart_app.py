"""Quart on this room's server: an app without files or timers, its requests and its kinds of answer.

Quart is entered by its public seam, `asgi_http_class`. quart-trio's class runs a nursery with two tasks
for each request, one of which waits for its client's leaving; here the app's task is cancelled from outside.
"""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar, cast

import trio
from quart import Response, request
from quart.wrappers.base import BaseRequestWebsocket
from quart_trio import QuartTrio
from quart_trio.wrappers import TrioRequest, TrioResponse
from werkzeug.datastructures import Headers
from werkzeug.exceptions import RequestEntityTooLarge, RequestTimeout
from werkzeug.routing import MapAdapter

from actors.core.request import TraceHeaders
from actors.http.exchange import ABORT, BEGAN, BODY, Receive, RequestBody, Send
from actors.http.http1 import FEED
from actors.http.streams import Feed

if TYPE_CHECKING:
    from hypercorn.typing import HTTPScope


class ApiRequest(TrioRequest):
    """A request whose body is read once, and that knows when it ends."""

    at_end: ExitStack
    """Closed when the request is over; its callbacks are synchronous, for they may run in a cancellation."""
    client: Any = None
    """The client whose key it carries, where keys are asked for."""
    trace_headers: TraceHeaders = ()
    """Headers of the span of this answer, where answers are traced."""
    receive: Receive
    began_s: float
    """The instant at which its headers had arrived, by `time.perf_counter`."""
    _read: bytes | None = None
    _is_whole = False

    async def read_body(self, most: int | None = None, within_s: float = inf) -> bytes:
        """Return the whole body; raises 413 if it is too large and 408 if it takes too long."""
        if self._read is None:
            if most is not None and (self.content_length or 0) > most:
                raise RequestEntityTooLarge
            body = bytearray()
            with trio.move_on_after(self._time_for_body(within_s)) as waiting:
                while not self._is_whole:
                    body += await self._piece()
                    if most is not None and len(body) > most:
                        raise RequestEntityTooLarge
            if waiting.cancelled_caught:
                raise RequestTimeout
            self._read = bytes(body)
        return self._read

    async def drop_body(self, within_s: float) -> None:
        """Let the body arrive for a while: most clients read an answer only after they have sent it all."""
        with trio.move_on_after(self._time_for_body(within_s)):
            while not self._is_whole:
                await self._piece()

    def _time_for_body(self, within_s: float) -> float:
        """Return `within_s`, or infinity where all has come: no timer is begun then."""
        body: RequestBody = self.scope["state"][BODY]
        return inf if body.is_whole else within_s

    async def _piece(self) -> bytes:
        event = await self.receive()
        self._is_whole = not event["more_body"]
        piece: bytes = event["body"]
        return piece

    def abort(self) -> None:
        """End the connection at once, whatever is still to be said."""
        self.scope["state"][ABORT]()


def current_request() -> ApiRequest:
    """Return the request that the running handler serves."""
    return request._get_current_object()  # type: ignore[attr-defined, no-any-return]  # a proxy


class FedResponse(TrioResponse):
    """A streamed answer whose body is a feed; `actors.http.streams` writes it past Quart where it may."""

    feed: Feed


class AsgiRequest:
    """Runs one request of ASGI's through Quart, and its answer past it where it is a feed."""

    def __init__(self, app: QuartTrio, scope: dict[str, Any]) -> None:
        self._app, self._scope = app, scope

    async def __call__(self, receive: Receive, send: Send) -> None:
        with ExitStack() as at_end:
            response = await self._answer(receive, at_end)
            headers = [(name.lower().encode(), value.encode("latin1")) for name, value in response.headers]
            await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
            if isinstance(response, FedResponse):
                write_feed, feed = self._scope["extensions"].get(FEED), response.feed
                if write_feed is not None:
                    del response
                    self._scope["headers"] = ()  # nothing of the request is kept for as long as it streams
                    await write_feed(feed)
                    return
            if response.content_length is not None:
                await send({"type": "http.response.body", "body": await response.get_data(as_text=False)})
                return
            async with response.response as body:
                async for piece in body:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body"})

    async def _answer(self, receive: Receive, at_end: ExitStack) -> Any:
        scope = self._scope
        headers = Headers([("Remote-Addr", (scope["client"] or ("<local>",))[0])])
        for name, value in scope["headers"]:
            headers.add(name.decode("latin1").title(), value.decode("latin1"))
        request = ApiRequest(
            *(scope["method"], scope["scheme"], scope["path"], scope["query_string"], headers),
            *(scope["root_path"], scope["http_version"], cast("HTTPScope", scope)),
            send_push_promise=_push_nothing,
        )
        request.receive, request.at_end, request.began_s = receive, at_end, scope["state"][BEGAN]
        return await self._app.handle_request(request)


async def _push_nothing(path: str, headers: Headers) -> None:
    """Push nothing to clients, though the app asks."""


class ApiApp(QuartTrio):
    """Quart whose routes do not depend on `Host`."""

    request_class = ApiRequest
    asgi_http_class = AsgiRequest  # type: ignore[assignment]  # called with the same arguments

    def create_url_adapter(self, request: BaseRequestWebsocket | None) -> MapAdapter | None:
        """Match by method and path alone: Quart raises outside any handler for some hosts."""
        if request is None:
            return None
        return self.url_map.bind(
            "localhost", url_scheme=request.scheme, default_method=request.method, path_info=request.path
        )


def new_app(name: str) -> ApiApp:
    """Return an app without routes."""
    app = ApiApp(name, static_folder=None, template_folder=None)
    app.url_map.merge_slashes = False  # or `//health` is redirected
    app.json.sort_keys = False  # type: ignore[attr-defined]  # the default provider has it
    return app


def json_response(
    body: Mapping[str, object], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return `body` as JSON, its keys in their order."""
    text = json.dumps(body, separators=(",", ":"))
    return TrioResponse(text, status, dict(headers or {}), content_type="application/json")


def text_response(text: bytes, content_type: str) -> Response:
    """Return an answer that is neither JSON nor a stream."""
    return TrioResponse(text, 200, content_type=content_type)


def event_stream_response(events: AsyncGenerator[bytes, None]) -> Response:
    """Return a streamed answer that no timer cuts and no proxy buffers."""
    return _streamed(TrioResponse, events)


def fed_response(feed: Feed) -> Response:
    """Return a streamed answer whose body is a feed."""
    response = _streamed(FedResponse, _pieces(feed))
    response.feed = feed
    return response


R = TypeVar("R", bound=TrioResponse)


def _streamed(kind: type[R], events: AsyncGenerator[bytes, None]) -> R:
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    response = kind(events, 200, headers, content_type="text/event-stream; charset=utf-8")
    response.timeout = None
    return response


async def _pieces(feed: Feed) -> AsyncGenerator[bytes, None]:
    """Yield what a feed brings, for answers that go through Quart."""
    due = trio.Event()
    feed.watch(lambda: due.set())
    while not feed.is_over:
        await due.wait()
        due = trio.Event()
        if piece := feed.take():
            yield piece
