"""The kinds of answer: a JSON object, a stream of server-sent events, and text."""

import json
from collections.abc import AsyncGenerator, Mapping

from quart import Response
from quart_trio.wrappers import TrioResponse


def json_response(
    body: Mapping[str, object], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """`body` as JSON, its keys in their order."""
    text = json.dumps(body, separators=(",", ":"))
    return TrioResponse(text, status, dict(headers or {}), content_type="application/json")


def text_response(text: bytes, content_type: str) -> Response:
    """What is neither JSON nor a stream."""
    return TrioResponse(text, 200, content_type=content_type)


def event_stream_response(events: AsyncGenerator[bytes, None]) -> Response:
    """A streamed answer that no timer cuts and no proxy buffers."""
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    response = TrioResponse(events, 200, headers, content_type="text/event-stream; charset=utf-8")
    response.timeout = None
    return response
