"""Answers of Quart's: JSON with its keys in their order, texts, and streams that no timer cuts."""

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Protocol

import trio
from quart import Response

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


def fed_response(feed: Feed) -> Response:
    """Return a streamed answer whose body is a feed: what is new while a piece is written is the next one."""
    return event_stream_response(_pieces(feed))


async def _pieces(feed: Feed) -> AsyncGenerator[bytes, None]:
    news = trio.Event()
    feed.watch(lambda: news.set())
    while not feed.is_over:
        await news.wait()
        news = trio.Event()
        if piece := feed.take():
            yield piece
