"""Requests of the API: their client, and the bytes of their body."""

import time
from typing import cast

import trio
from quart import request

from sundog.actors.api.crowding import BodiesUnderWay
from sundog.actors.api.limits import KeyHolder
from sundog.actors.core.request import TraceHeaders
from sundog.actors.http.quart_app import HttpRequest


class ApiRequest(HttpRequest):
    """Request whose body is counted with those of others."""

    client: KeyHolder | None = None
    """Client of the request's key, if keys are required."""
    num_body_bytes = 0
    is_crowded_out = False
    """Whether its body found no room beside those of other requests."""
    trace_headers: TraceHeaders = ()
    """Headers of the span of this answer, if answers are traced."""

    def __init__(self, bodies: BodiesUnderWay, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.began_s = time.perf_counter()
        self._bodies = bodies
        self._has_whole_body = trio.Event()
        self._keeps_body = True
        self.at_end.callback(self._forget_body)

    @property
    def owner(self) -> str | None:
        """Digest of its key; None if keys do not distinguish clients."""
        return None if self.client is None else self.client.limited_as

    def take(self, piece: bytes, *, is_last: bool) -> None:
        """Keep a piece of the body, if there is room and the body is needed."""
        if self._keeps_body and piece and not self._bodies.add(self, len(piece)):
            self.is_crowded_out = True
            self._forget_body()
            self.body.set_complete()
        super().take(piece if self._keeps_body else b"", is_last=is_last)
        if is_last:
            self._has_whole_body.set()

    def _forget_body(self) -> None:
        self._keeps_body = False
        self._bodies.release(self)
        self.body.clear()

    def abort(self) -> None:
        """Close the connection in the middle of the answer."""
        self.is_cut = True

    async def read_body(self) -> bytes:
        """Return the whole body; raises 413 if it is too large and 408 if it takes too long."""
        return cast(bytes, await self.get_data(as_text=False))

    async def drop_body(self, within_s: float) -> None:
        """Receive and drop the body for a while: most clients read an answer only after sending all of it."""
        self._forget_body()
        with trio.move_on_after(within_s):
            await self._has_whole_body.wait()


def current_request() -> ApiRequest:
    """Return the request of the running handler."""
    return request._get_current_object()  # type: ignore[attr-defined, no-any-return]  # a proxy
