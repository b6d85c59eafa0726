"""The app: Quart without files or timers, its requests, and the one way of its answers to Hypercorn.

Hypercorn and quart-trio are entered by a public seam, the class of connections. Laws:

- A client's leaving ends what is computed for it, and never a `send` that is under way; the last event of a
  body is sent in any case. Else Hypercorn keeps connections whose clients sent further requests and left.
- What is new in a stream while its last piece is written goes out in one piece.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from typing import Any, Protocol, cast

import trio
from quart import request
from quart.wrappers.base import BaseRequestWebsocket
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection
from quart_trio.wrappers import TrioRequest, TrioResponse
from werkzeug.routing import MapAdapter

from actors.core.request import TraceHeaders
from actors.http.bodies import BodiesUnderWay

Event = Mapping[str, Any]
"""An event of ASGI, by its keys."""
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]


class Feed(Protocol):
    """A body that comes piece by piece, and whose writer never waits for its reader."""

    is_over: bool
    """True once all of it has been taken."""

    def watch(self, on_unread: Callable[[], None]) -> None:
        """Have this called whenever there is something to take; at once if there is."""
        ...

    def take(self) -> bytes:
        """Return what is new; empty if nothing is. Never raises."""
        ...


class FedResponse(TrioResponse):
    """A streamed answer whose body is a feed."""

    feed: Feed


class ApiRequest(TrioRequest):
    """A request that knows when it ends, and when its client leaves."""

    client: Any = None
    """The client whose key it carries, where keys are asked for."""
    owner: str | None = None
    """The digest of that key, where several keys tell clients apart."""
    num_body_bytes = 0
    is_crowded_out = False
    """True if there was no room for its body beside those of other requests."""
    drops_body = False
    """True once its body is of no use: what arrives of it is not kept."""
    trace_headers: TraceHeaders = ()
    """Headers of the span of this answer, where answers are traced."""
    is_cut = has_left = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.began_s = time.perf_counter()
        self.at_end = ExitStack()
        """Closed when the request is over; its callbacks are synchronous: they may run in a cancellation."""
        self.has_whole_body = trio.Event()
        self.waiting = trio.CancelScope()
        """What the client's leaving cancels: the handler, or the wait for the next piece of its answer."""
        self.news = trio.Event()

    async def read_body(self) -> bytes:
        """Return the whole body; raises 413 if it is too large and 408 if it takes too long."""
        return cast(bytes, await self.get_data(as_text=False))

    async def drop_body(self, within_s: float) -> None:
        """Let the body arrive for a while: most clients read an answer only after they have sent it all."""
        self.drops_body = True
        self.body.clear()
        with trio.move_on_after(within_s):
            await self.has_whole_body.wait()

    def abort(self) -> None:
        """End the connection in the middle of the answer."""
        self.is_cut = True

    def leave(self) -> None:
        """Note that the client has left."""
        self.has_left = True
        self.waiting.cancel()
        self.news.set()


def current_request() -> ApiRequest:
    """Return the request that the running handler serves."""
    return cast(Any, request)._get_current_object()  # type: ignore[no-any-return]  # a proxy


class Connection(TrioASGIHTTPConnection):
    """Runs one request through Quart and sends its answer."""

    def __init__(self, app: QuartTrio, scope: Any) -> None:
        if not scope["path"].startswith("/"):  # the absolute form, meant for proxies, or none
            scope["path"] = "/" + scope["path"].partition("://")[2].partition("/")[2]
        super().__init__(app, scope)

    async def handle_messages(  # type: ignore[override]  # as quart-trio's
        self, nursery: trio.Nursery, request: Any, receive: Receive
    ) -> None:
        """Take the body in, then wait for the client's leaving."""
        bodies = cast(ApiApp, self.app).bodies
        request.at_end.callback(bodies.release, request)
        while (event := await receive())["type"] == "http.request":
            piece = b"" if request.drops_body else event["body"]
            if piece and not bodies.add(request, len(piece)):
                request.drops_body = request.is_crowded_out = True
                request.body.clear()
                request.body.set_complete()
            elif piece:
                request.body.append(piece)
            if request.drops_body:
                bodies.release(request)
            if not event["more_body"]:
                request.body.set_complete()
                request.has_whole_body.set()
        request.leave()

    async def handle_request(  # type: ignore[override]  # as quart-trio's
        self, nursery: trio.Nursery, request: Any, send: Send
    ) -> None:
        """Answer the request; Hypercorn cuts the connection of one that has no last event."""
        with request.at_end:
            with request.waiting:
                response = await self.app.handle_request(request)
            if not request.waiting.cancelled_caught:
                await _answer(request, response, send)
        nursery.cancel_scope.cancel()


async def _answer(request: ApiRequest, response: Any, send: Send) -> None:
    headers = [(name.lower().encode(), value.encode("latin1")) for name, value in response.headers]
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    if isinstance(response, FedResponse):
        await _feed(response.feed, request, send)
    elif response.content_length is not None:
        body = await response.get_data(as_text=False)
        if not request.is_cut:
            await send({"type": "http.response.body", "body": body})
    else:
        await _generate(response, request, send)


async def _feed(feed: Feed, request: ApiRequest, send: Send) -> None:
    request.body.clear()
    feed.watch(lambda: request.news.set())
    more = True
    while more:
        await request.news.wait()
        request.news = trio.Event()
        piece = b"" if request.has_left else feed.take()
        if request.is_cut:
            return
        more = not (feed.is_over or request.has_left)
        if piece or not more:
            await send({"type": "http.response.body", "body": piece, "more_body": more})


async def _generate(response: Any, request: ApiRequest, send: Send) -> None:
    async with response.response as body:
        pieces, piece = aiter(body), cast("bytes | None", b"")
        while piece is not None:
            piece = None
            with trio.CancelScope() as request.waiting:
                piece = None if request.has_left else await anext(pieces, None)
            if piece is not None:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body"})


class NoWebsocket:
    """Turns websockets down; nothing here speaks them."""

    def __init__(self, app: QuartTrio, scope: Any) -> None:
        """Need nothing of either."""

    async def __call__(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.close", "code": 1000})


class ApiApp(QuartTrio):
    """Quart whose routes do not depend on `Host`."""

    bodies: BodiesUnderWay
    request_class = ApiRequest
    asgi_http_class = Connection  # type: ignore[assignment]  # its methods are as quart-trio's
    asgi_websocket_class = NoWebsocket  # type: ignore[assignment]  # called with the same arguments

    def create_url_adapter(self, request: BaseRequestWebsocket | None) -> MapAdapter | None:
        """Match by method and path alone: Quart raises outside any handler for some hosts."""
        if request is None:
            return None
        return self.url_map.bind(
            "localhost", url_scheme=request.scheme, default_method=request.method, path_info=request.path
        )


def new_app(name: str, max_body_bytes: int, body_timeout_s: float) -> ApiApp:
    """Return an app without routes."""
    app = ApiApp(name, static_folder=None, template_folder=None)
    app.config.update(MAX_CONTENT_LENGTH=max_body_bytes, BODY_TIMEOUT=body_timeout_s)
    app.bodies = BodiesUnderWay()
    app.url_map.merge_slashes = False  # or `//health` is redirected
    return app
