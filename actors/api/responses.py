"""Responses of Quart: JSON with ordered keys, texts, and streams without a time limit."""

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Protocol

import trio
from quart import Response

STREAMED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Headers that keep proxies from buffering a stream."""
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
    """Return a streamed answer of generated events."""
    return Response(events, 200, STREAMED, content_type=EVENTS)


class Feed(Protocol):
    """Body of an answer in pieces, whose writer never waits for its reader."""

    is_over: bool
    """Whether all of it has been taken."""

    def watch(self, on_unread: Callable[[], None]) -> None:
        """Call `on_unread` whenever output becomes available; at once if some is."""
        ...

    def take(self) -> bytes:
        """Return the new output; empty if there is none. Never raises."""
        ...


def fed_response(feed: Feed) -> Response:
    """Return a streamed answer with the body `feed`. Output that arrives while one piece is written forms the
    next.
    """
    return event_stream_response(_pieces(feed))


async def _pieces(feed: Feed) -> AsyncGenerator[bytes, None]:
    news = trio.Event()
    feed.watch(lambda: news.set())
    while not feed.is_over:
        await news.wait()
        news = trio.Event()
        if piece := feed.take():
            yield piece
