"""GET /dashboard and /dashboard/events: what the scheduler does, while it does it."""

import json
from collections.abc import AsyncGenerator
from importlib.resources import files

import trio
from quart import Blueprint, Response

from actors.api.auth import LIVE
from actors.api.context import ApiContext
from actors.api.edge.response import event_stream_response, text_response
from actors.api.errors import ApiError
from actors.api.in_flight import InFlight
from actors.api.live import EVERY_S, Watched
from actors.api.routes.documents import HTML


def dashboard_routes(context: ApiContext) -> Blueprint:
    """The page, and the events that it reads."""
    routes = Blueprint("dashboard", __name__)
    page = (files("actors.api") / "pages" / "dashboard.html").read_bytes()

    @routes.get("/dashboard")
    async def show_page() -> Response:
        return text_response(page, HTML)

    @routes.get(LIVE)
    async def show_events() -> Response:
        if context.live is None:
            raise ApiError(501, "This server measures nothing.")
        return event_stream_response(_events(context.live, context.in_flight))

    return routes


async def _events(live: Watched, in_flight: InFlight) -> AsyncGenerator[bytes, None]:
    """One instant after another, until the reader leaves or the server stops; the gate, when it changes."""
    gate = b""
    while True:
        is_last, now = live.draining.is_set(), _gate(in_flight, is_stopping=live.draining.is_set())
        if now != gate:
            gate = now
            yield gate
        if is_last:
            return
        yield await live.event()
        with trio.move_on_after(EVERY_S):
            await live.draining.wait()


def _gate(in_flight: InFlight, *, is_stopping: bool) -> bytes:
    """Whether new requests are held up at this door, and how many are."""
    words = {"is_paused": in_flight.is_paused, "num_held": in_flight.num_held, "is_stopping": is_stopping}
    return b"event: gate\ndata: %s\n\n" % json.dumps(words).encode()
