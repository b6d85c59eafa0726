"""One HTTP request between Hypercorn and Quart, with the cures for what goes wrong there.

quart-trio runs a receiver and a handler in one nursery, and the first to end cancels the other. Two tasks
and a nursery cost more than most requests: where the connection has an `Inbox`, the handler alone runs, in
Hypercorn's task, and its client's leaving cancels it from there.

- While the app is inside its last `send`, Hypercorn queues `http.disconnect`. The receiver then
  cancels the nursery and with it the end of Hypercorn's own work on the connection: one with
  `Connection: close` is never closed, the keep-alive timer never starts again, and shutdown waits
  for idle connections. Cure: the last `send` is shielded.
- An answer sent before the body has arrived leaves the rest of the body where the connection's
  next request is expected. Cure: `body_arrived` lets the app wait for the whole body first.
- A target that is no URL (`http://[`), or has no path (`?a`), raises before there is a request. Cure: it is
  answered here.
- A body of many small pieces costs more on its way than to make. Cure: a feed is written past both.
- A streamed answer whose generator was never entered, because its client left first, would never
  run its `finally`. Cure: what must happen when the request ends is on `at_end`, which this class
  closes, on every way out.
- A request is kept until its answer has ended: a third of what an open stream costs in memory. Cure: once
  a feed is written past Quart, its request is forgotten.
"""

import time
from functools import partial

import trio
from hypercorn.typing import (
    ASGIReceiveCallable,
    ASGIReceiveEvent,
    ASGISendCallable,
    ASGISendEvent,
    HTTPResponseBodyEvent,
)
from quart import Request, request
from quart.utils import encode_headers
from quart_trio.asgi import TrioASGIHTTPConnection, TrioASGIWebsocketConnection
from quart_trio.wrappers import TrioRequest
from werkzeug.datastructures import Headers

from actors.api.edge.at_end import AtEnd
from actors.api.edge.direct import ABORT, DIRECT, Body, Offer
from actors.api.edge.exchange import BEGAN
from actors.api.edge.inbox import Inbox, Take
from actors.api.edge.response import FedResponse
from actors.api.keys import Client
from actors.core.request import TraceHeaders

END: HTTPResponseBodyEvent = {"type": "http.response.body", "body": b"", "more_body": False}


class RequestHeaders(Headers):
    """A request's headers. To ask for one that it does not have costs no exception."""

    def __init__(self, items: list[tuple[str, str]]) -> None:
        super().__init__()
        self._list.extend(items)
        self._first = {name.lower(): value for name, value in reversed(items)}

    def get(self, key, default=None, type=None):  # type: ignore[no-untyped-def, override]  # as Werkzeug's
        """The first of this name."""
        if type is not None:
            return super().get(key, default, type)
        return self._first.get(key.lower(), default)


class ApiRequest(TrioRequest):
    """A request that knows when it ends.

    `at_end` is closed when the request is over, with synchronous callbacks only: they may run
    inside a cancellation.
    """

    at_end: AtEnd
    body_arrived: trio.Event
    client: Client | None = None
    """Whose key it carries, where keys are asked for."""
    trace_headers: TraceHeaders = ()
    """Of the span of this answer, where answers are traced."""
    _read: bytes | None = None
    began_s: float
    """When its headers had arrived, by `time.perf_counter`."""

    async def read_body(self) -> bytes:
        """The whole body; raises 413 if it is too large and 408 if it takes too long."""
        if self._read is None:
            if self.body_arrived.is_set():
                self._read = await self.body
            else:
                self._read = await self.get_data(cache=True, as_text=False, parse_form_data=False)
        return self._read

    def abort(self) -> None:
        """End the connection at once, whatever is still to be said; harmless where it cannot be reached."""
        state = self.scope["state"]
        if ABORT in state:
            state[ABORT]()


def current_request() -> ApiRequest:
    """The request that the running handler serves."""
    return request._get_current_object()  # type: ignore[attr-defined, no-any-return]  # a proxy


class RequestRunner(TrioASGIHTTPConnection):
    """Runs one request; set as the app's `asgi_http_class`."""

    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        try:
            request = self._create_request_from_scope(send)
        except (ValueError, IndexError):
            await _refuse_target(send)
            return
        assert isinstance(request, ApiRequest)
        request.body_arrived = trio.Event()
        request.began_s = self.scope["state"].get(BEGAN) or time.perf_counter()
        with AtEnd() as request.at_end:
            if (inbox := Inbox.behind(receive)) is not None:
                # Or they keep each other until garbage is looked for.
                request.at_end.callback(inbox.leave)
                with trio.CancelScope() as scope:
                    inbox.attach(partial(_take, request, scope))
                    body = await self._answer(request, send)
                    if body is not None:
                        inbox.attach(partial(_leave, scope))
                        self._forget_head()
                        del request
                        await body.run()
                        await _send(send, END)
                return
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_receive, receive, partial(_take, request, nursery.cancel_scope))
                if (body := await self._answer(request, send)) is not None:
                    await body.run()
                    await _send(send, END)
                nursery.cancel_scope.cancel()

    def _forget_head(self) -> None:
        """What the request was is of no use any more."""
        self.scope["headers"] = ()

    def _create_request_from_scope(self, send: ASGISendCallable) -> Request:
        scope = self.scope
        if not scope["path"].startswith("/") or scope["http_version"] < "1.1":
            return super()._create_request_from_scope(send)
        client = scope["client"] or ("<local>",)
        headers = [("Remote-Addr", client[0])]
        for name, value in scope["headers"]:
            headers.append((name.decode("latin1").title(), value.decode("latin1")))
        return self.app.request_class(
            scope["method"],
            scope["scheme"],
            scope["path"],
            scope["query_string"],
            RequestHeaders(headers),
            scope["root_path"],
            scope["http_version"],
            max_content_length=self.app.config["MAX_CONTENT_LENGTH"],
            body_timeout=self.app.config["BODY_TIMEOUT"],
            send_push_promise=partial(self._send_push_promise, send),
            scope=scope,
        )

    async def _answer(self, request: ApiRequest, send: ASGISendCallable) -> Body | None:
        """The whole answer; or its head, and the body that is to be written past Quart."""
        response = await self.app.handle_request(request)
        offer = self._offer() if isinstance(response, FedResponse) else None
        if offer is None or not isinstance(response, FedResponse):
            await self._send_response(partial(_send, send), response)
            return None
        headers = encode_headers(response.headers)
        await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
        return offer(response.feed)

    def _offer(self) -> Offer | None:
        """How a body is written past Hypercorn; None where HTTP frames it otherwise than by chunks."""
        scope = self.scope
        is_chunked = scope["http_version"] == "1.1" and scope["method"] != "HEAD"
        return scope["state"].get(DIRECT) if is_chunked else None


class NoWebsocket(TrioASGIWebsocketConnection):
    """Turns every websocket down with 403; set as the app's `asgi_websocket_class`."""

    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        await receive()
        await send({"type": "websocket.close", "code": 1000, "reason": None})


def _take(request: ApiRequest, scope: trio.CancelScope, event: ASGIReceiveEvent) -> None:
    """A piece of the request's body, or its client has left."""
    if event["type"] == "http.request":
        request.body.append(event["body"])
        if event["more_body"]:
            return
        request.body.set_complete()
    else:
        scope.cancel()
    request.body_arrived.set()


def _leave(scope: trio.CancelScope, event: ASGIReceiveEvent) -> None:
    """Its client has left; whatever else may come is of no use."""
    if event["type"] != "http.request":
        scope.cancel()


async def _receive(receive: ASGIReceiveCallable, take: Take) -> None:
    """The same of a server without inboxes; ends when the client has left."""
    while True:
        event = await receive()
        take(event)
        if event["type"] != "http.request":
            return


async def _refuse_target(send: ASGISendCallable) -> None:
    await send({"type": "http.response.start", "status": 400, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send(send: ASGISendCallable, event: ASGISendEvent) -> None:
    if event["type"] == "http.response.body" and not event["more_body"]:
        with trio.CancelScope(shield=True):
            await send(event)
    else:
        await send(event)
