"""Answers of Quart's: JSON with its keys in their order, texts, and streams that no timer cuts."""

import json
from collections.abc import AsyncGenerator, Mapping

from quart import Response

from actors.http.quart_app import FedResponse, Feed

STREAMED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Headers that keep proxies from holding a stream back."""
EVENTS = "text/event-stream; charset=utf-8"


def json_response(
    body: Mapping[str, object], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return `body` as JSON, its keys in their order."""
    text = json.dumps(body, separators=(",", ":"))
    return Response(text, status, dict(headers or {}), content_type="application/json")


def text_response(text: bytes, content_type: str) -> Response:
    """Return an answer that is neither JSON nor a stream."""
    return Response(text, 200, content_type=content_type)


def event_stream_response(events: AsyncGenerator[bytes, None]) -> Response:
    """Return a streamed answer of events that are generated."""
    return Response(events, 200, STREAMED, content_type=EVENTS)


def fed_response(feed: Feed) -> Response:
    """Return a streamed answer whose body is a feed."""
    response = FedResponse((), 200, STREAMED, content_type=EVENTS)
    response.feed = feed
    return response
