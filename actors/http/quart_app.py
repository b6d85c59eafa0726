"""Quart app without files or timers, its requests, and the path of its answers to Hypercorn.

Quart and Hypercorn meet at a public interface, the connection class. Law: when a client leaves, the
computation for it ends, but never a `send` in progress, and the last event of a body is sent in any case.
Otherwise Hypercorn keeps connections whose clients sent further requests and left.
"""

from contextlib import ExitStack
from typing import Any

import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable
from quart.ctx import RequestContext
from quart.typing import ResponseReturnValue
from quart.wrappers.base import BaseRequestWebsocket
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection
from quart_trio.wrappers import TrioRequest
from werkzeug.routing import MapAdapter

from sundog.actors.front.foreign import OWN_EXITS, failure


class HttpRequest(TrioRequest):
    """Request with an end, and a client that may leave."""

    is_cut = False
    """Whether to close the connection in the middle of the answer."""
    has_left = is_sending = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.at_end = ExitStack()
        """Closed at the end of the request; its callbacks are synchronous, since they may run during
        cancellation.
        """
        self.waiting = trio.CancelScope()
        """Cancelled when the client leaves while no piece is being sent: the handler, or a streamed
        answer.
        """

    def take(self, piece: bytes, *, is_last: bool) -> None:
        self.body.append(piece)
        if is_last:
            self.body.set_complete()

    def leave(self) -> None:
        self.has_left = True
        if not self.is_sending:
            self.waiting.cancel()


class Connection(TrioASGIHTTPConnection):
    """Runs one request through Quart and sends its answer."""

    def __init__(self, app: QuartTrio, scope: Any) -> None:
        if not scope["path"].startswith("/"):  # the absolute form, meant for proxies, or none
            scope["path"] = "/" + scope["path"].partition("://")[2].partition("/")[2]
        super().__init__(app, scope)

    async def handle_messages(  # type: ignore[override]  # as quart-trio's
        self, nursery: trio.Nursery, request: Any, receive: ASGIReceiveCallable
    ) -> None:
        """Receive the body, then wait for the client to leave."""
        while (event := await receive())["type"] == "http.request":
            request.take(event["body"], is_last=not event["more_body"])
        request.leave()

    async def handle_request(  # type: ignore[override]  # as quart-trio's
        self, nursery: trio.Nursery, request: Any, send: ASGISendCallable
    ) -> None:
        """Answer the request; Hypercorn closes the connection of one without a last event."""
        try:
            with request.at_end:
                with request.waiting:
                    response = await self.app.handle_request(request)
                if not request.waiting.cancelled_caught:
                    request.body.clear()
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
    body = b""
    if response.content_length is None:
        await _stream(request, response, send)
    else:
        body = await response.get_data(as_text=False)
    if not request.is_cut:
        await send({"type": "http.response.body", "body": body, "more_body": False})


async def _stream(request: HttpRequest, response: Any, send: ASGISendCallable) -> None:
    # One scope for all pieces: a scope for each is a fifth of what a piece costs.
    with trio.CancelScope() as request.waiting:
        if request.has_left:
            request.waiting.cancel()
        async with response.response as pieces:
            async for piece in pieces:
                if request.waiting.cancel_called or request.is_cut:
                    return
                request.is_sending = True
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                request.is_sending = False
                if request.has_left:
                    return


class HttpApp(QuartTrio):
    """Quart app whose routes do not depend on `Host`."""

    asgi_http_class = Connection  # type: ignore[assignment]  # its methods are as quart-trio's

    async def dispatch_request(self, request_context: RequestContext | None = None) -> ResponseReturnValue:
        """Return the route's answer; whatever foreign code raises is a 500 of this request."""
        try:
            return await super().dispatch_request(request_context)
        except (Exception, BaseExceptionGroup):
            raise
        except OWN_EXITS:
            raise
        except BaseException as panic:
            raise failure(panic) from panic

    def create_url_adapter(self, request: BaseRequestWebsocket | None) -> MapAdapter | None:
        """Match by method and path alone: for some hosts Quart raises outside any handler."""
        if request is None:
            return None
        return self.url_map.bind(
            "localhost", url_scheme=request.scheme, default_method=request.method, path_info=request.path
        )
