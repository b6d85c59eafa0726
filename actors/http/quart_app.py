"""The app: Quart without files or timers, its requests, and the one way of its answers to Hypercorn.

Quart and Hypercorn meet at a public seam, the class of connections. Law: a client's leaving ends what is
computed for it, never a `send` that is under way, and the last event of a body is sent in any case. Else
Hypercorn keeps connections whose clients sent further requests and left.
"""

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any, TypeVar

import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable
from quart import Response
from quart.ctx import RequestContext
from quart.typing import ResponseReturnValue
from quart.wrappers.base import BaseRequestWebsocket
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection
from quart_trio.wrappers import TrioRequest
from werkzeug.routing import MapAdapter

from actors.front.foreign import OWN_EXITS, failure

T = TypeVar("T")


class HttpRequest(TrioRequest):
    """A request that ends, and whose client may leave."""

    is_cut = has_left = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.at_end = ExitStack()
        """Closed when the request is over; its callbacks are synchronous: they may run in a cancellation."""
        self._waiting = trio.CancelScope()

    def take(self, piece: bytes, *, is_last: bool) -> None:
        """Keep a piece of the body."""
        self.body.append(piece)
        if is_last:
            self.body.set_complete()

    def abort(self) -> None:
        """End the connection in the middle of the answer."""
        self.is_cut = True

    def leave(self) -> None:
        """Note that the client has left."""
        self.has_left = True
        self._waiting.cancel()

    async def until_left(self, work: Callable[..., Awaitable[T]], *args: Any) -> T | None:
        """Return the result of `work`; None if the client leaves, or has left, while that waits."""
        with trio.CancelScope() as self._waiting:
            if self.has_left:
                self._waiting.cancel()
            return await work(*args)
        return None


class Connection(TrioASGIHTTPConnection):
    """Runs one request through Quart and sends its answer."""

    def __init__(self, app: QuartTrio, scope: Any) -> None:
        if not scope["path"].startswith("/"):  # the absolute form, meant for proxies, or none
            scope["path"] = "/" + scope["path"].partition("://")[2].partition("/")[2]
        super().__init__(app, scope)

    async def handle_messages(  # type: ignore[override]  # as quart-trio's
        self, nursery: trio.Nursery, request: Any, receive: ASGIReceiveCallable
    ) -> None:
        """Take the body in, then wait for the client's leaving."""
        while (event := await receive())["type"] == "http.request":
            request.take(event["body"], is_last=not event["more_body"])
        request.leave()

    async def handle_request(  # type: ignore[override]  # as quart-trio's
        self, nursery: trio.Nursery, request: Any, send: ASGISendCallable
    ) -> None:
        """Answer the request; Hypercorn cuts the connection of one that has no last event."""
        try:
            with request.at_end:
                response = await request.until_left(self.app.handle_request, request)
                request.body.clear()
                if response is not None:
                    await _answer(request, response, send)
        except (Exception, BaseExceptionGroup):
            raise
        except OWN_EXITS:
            raise
        except BaseException as panic:  # the server ends by what is no Exception
            raise failure(panic) from panic
        nursery.cancel_scope.cancel()


async def _answer(request: HttpRequest, response: Any, send: ASGISendCallable) -> None:
    headers = [(name.lower().encode(), value.encode("latin1")) for name, value in response.headers]
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    async with response.response as body:
        pieces = aiter(body)
        while (piece := await request.until_left(anext, pieces, None)) is not None and not request.is_cut:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    if not request.is_cut:
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class HttpApp(QuartTrio):
    """Quart whose routes do not depend on `Host`."""

    asgi_http_class = Connection  # type: ignore[assignment]  # its methods are as quart-trio's

    async def dispatch_request(self, request_context: RequestContext | None = None) -> ResponseReturnValue:
        """Return what the route answers; whatever foreign code raises there is a 500 of this request."""
        try:
            return await super().dispatch_request(request_context)
        except (Exception, BaseExceptionGroup):
            raise
        except OWN_EXITS:
            raise
        except BaseException as panic:
            raise failure(panic) from panic

    def create_url_adapter(self, request: BaseRequestWebsocket | None) -> MapAdapter | None:
        """Match by method and path alone: Quart raises outside any handler for some hosts."""
        if request is None:
            return None
        return self.url_map.bind(
            "localhost", url_scheme=request.scheme, default_method=request.method, path_info=request.path
        )


def new_app(
    name: str, new_request: Callable[..., HttpRequest], max_body_bytes: int, body_timeout_s: float
) -> HttpApp:
    """Return an app without routes, whose requests are made by `new_request`."""
    app = HttpApp(name, static_folder=None, template_folder=None)
    app.request_class = new_request  # type: ignore[assignment]  # called as the class is
    app.config.update(MAX_CONTENT_LENGTH=max_body_bytes, BODY_TIMEOUT=body_timeout_s)
    app.url_map.merge_slashes = False  # or `//health` is redirected

    @app.before_websocket
    async def turn_down() -> Response:
        return Response(b"", 403)

    return app
