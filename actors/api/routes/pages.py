"""Pages and their data: GET /, /docs and /openapi.json, /dashboard and its events; all work offline."""

import json
from collections.abc import AsyncGenerator
from functools import partial
from html import escape
from importlib.resources import files
from string import Template

import trio
from quart import Blueprint, Response, request

from sundog.actors.api.context import ApiContext, server_version
from sundog.actors.api.errors import ApiError
from sundog.actors.api.in_flight import AnswersInFlight
from sundog.actors.api.keys import LIVE
from sundog.actors.api.limits import KeyHolder
from sundog.actors.api.live import EVERY_S, LiveEvents
from sundog.actors.api.openapi import document
from sundog.actors.api.own_rows import with_own_rows
from sundog.actors.api.requests import current_request
from sundog.actors.api.responses import event_stream_response, json_response, text_response

HTML = "text/html; charset=utf-8"


def documents_routes(context: ApiContext) -> Blueprint:
    """Return the two routes of the OpenAPI document and its page."""
    routes = Blueprint("documents", __name__)
    described = document(server_version(), has_key=context.has_key)
    page = (files("sundog.actors.api") / "pages" / "docs.html").read_bytes()

    @routes.get("/openapi.json")
    async def show_document() -> Response:
        return json_response(described)

    @routes.get("/docs")
    async def show_page() -> Response:
        return text_response(page, HTML)

    return routes


def dashboard_routes(context: ApiContext) -> Blueprint:
    """Return the routes of the live page and its events."""
    routes = Blueprint("dashboard", __name__)
    page = (files("sundog.actors.api") / "pages" / "dashboard.html").read_bytes()

    @routes.get("/dashboard")
    async def show_page() -> Response:
        return text_response(page, HTML)

    @routes.get(LIVE)
    async def show_events() -> Response:
        if context.live is None:
            raise ApiError(501, "This server has no metrics.")
        return event_stream_response(_events(context.live, context.in_flight, current_request().client))

    return routes


async def _events(
    live: LiveEvents, in_flight: AnswersInFlight, holder: KeyHolder | None
) -> AsyncGenerator[bytes, None]:
    """Yield snapshots until the reader leaves or the server stops, and the gate when it changes.

    The holder of one of several keys sees only the names of its own requests.
    """
    gate = b""
    while True:
        is_last, now = live.draining.is_set(), _gate(in_flight, is_stopping=live.draining.is_set())
        if now != gate:
            gate = now
            yield gate
        if is_last:
            return
        event = await live.event()
        if holder is not None and (owner := holder.limited_as) is not None:
            event = with_own_rows(event, holder, partial(in_flight.is_of, owner))
        yield event
        with trio.move_on_after(EVERY_S):
            await live.draining.wait()


def _gate(in_flight: AnswersInFlight, *, is_stopping: bool) -> bytes:
    words = {"is_paused": in_flight.is_paused, "num_held": in_flight.num_held, "is_stopping": is_stopping}
    return b"event: gate\ndata: %s\n\n" % json.dumps(words).encode()


LINKS = {
    "/dashboard": "live page: queue, batch, KV blocks",
    "/docs": "the routes and their fields",
    "/openapi.json": "the same as JSON",
    "/metrics": "metrics for Prometheus",
    "/health": "health check",
    "/v1/models": "the models",
}


def welcome_routes(context: ApiContext) -> Blueprint:
    """Return the welcome page for browsers, and the same as JSON for everything else."""
    routes = Blueprint("welcome", __name__)
    page = Template((files("sundog.actors.api") / "pages" / "welcome.html").read_text(encoding="utf-8"))
    links = "\n".join(f'<li><a href="{path}">{path}</a>: {what}</li>' for path, what in LINKS.items())
    model = context.model

    @routes.get("/")
    async def show_welcome() -> Response:
        if "text/html" not in request.headers.get("Accept", ""):
            known = {"name": "Sundog", "version": server_version(), "model": model.name}
            return json_response({**known, "max_model_len": model.max_model_len, "links": LINKS})
        url = escape(request.host_url.rstrip("/"))
        text = page.substitute(
            model=escape(model.name), max_model_len=f"{model.max_model_len:,}", links=links, url=url
        )
        return text_response(text.encode(), HTML)

    return routes
