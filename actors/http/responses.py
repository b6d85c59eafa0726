"""The kinds of answer: a JSON object, a stream of server-sent events, and text."""

import json
from collections.abc import AsyncGenerator, Mapping
from typing import TypeVar

import trio
from quart import Response
from quart_trio.wrappers import TrioResponse

from actors.http.streams import Feed


class FedResponse(TrioResponse):
    """A streamed answer whose body is a feed; `actors.http.streams` writes it past Quart where it may."""

    feed: Feed


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
    return _streamed(TrioResponse, events)


def fed_response(feed: Feed) -> Response:
    """The same, of a feed."""
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
    """What a feed brings, piece by piece, where each goes through Quart."""
    due = trio.Event()
    feed.watch(lambda: due.set())
    while not feed.is_over:
        await due.wait()
        due = trio.Event()
        if piece := feed.take():
            yield piece
