"""Proxies in a door for the server's parts at the other end of its link."""

import itertools
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import overload

import trio

from sundog.actors.api import LLM
from sundog.actors.api.exposition import Exposition
from sundog.actors.api.in_flight import AnswerControl
from sundog.actors.api.keys import ApiKeys
from sundog.actors.api.limits import ConcurrencyLimits, LimitReached, Release
from sundog.actors.api.live import LiveEvents
from sundog.actors.kernel.actor import ActorDied, Ref
from sundog.actors.kernel.stream import Delta, DeltaStream
from sundog.actors.messages import (
    Accepted,
    Cancel,
    ChangeAdapters,
    CheckHealth,
    Done,
    Drain,
    Freeze,
    Generate,
    Health,
    Refused,
    ResetPrefixCache,
)
from sundog.runtime.doors.messages import AcquireLimit, Answered, Asked, Fetch, Order, ReleaseLimit, ToServer


class Streams:
    """Streams of this door by number."""

    def __init__(self) -> None:
        self._streams: dict[int, DeltaStream] = {}
        self._next = 0

    def begin(self, n: int) -> tuple[int, tuple[DeltaStream, ...]]:
        """Return new streams, and the number of the first."""
        first, self._next = self._next, self._next + n
        streams = tuple([DeltaStream() for _ in range(n)])
        self._streams.update(enumerate(streams, first))
        return first, streams

    def put(self, number: int, delta: Delta) -> None:
        """Append a delta to a stream; dropped if the stream is unknown."""
        if (stream := self._streams.get(number)) is not None:
            stream.put(delta)
            if delta.finish_reason is not None:
                del self._streams[number]

    def forget(self, first: int, n: int) -> None:
        for number in range(first, first + n):
            self._streams.pop(number, None)


class RemoteLLM:
    """Proxy of AsyncLLM at the other end (`sundog.actors.api.in_flight.LLM`)."""

    def __init__(self, server: Ref[ToServer], streams: Streams) -> None:
        self._server = server
        self._streams = streams

    @overload
    async def ask(self, message: Generate, /) -> Accepted | Refused: ...
    @overload
    async def ask(self, message: CheckHealth, /) -> Health: ...
    @overload
    async def ask(self, message: ResetPrefixCache, /) -> Done | Refused: ...
    @overload
    async def ask(self, message: Freeze, /) -> Done | Refused: ...
    @overload
    async def ask(self, message: ChangeAdapters, /) -> Done | Refused: ...
    @overload
    async def ask(self, message: Drain, /) -> Done | Refused: ...

    async def ask(
        self, message: Generate | CheckHealth | ResetPrefixCache | Freeze | ChangeAdapters | Drain, /
    ) -> Accepted | Refused | Health | Done:
        match message:
            case Generate():
                return await self._generate(message)
            case CheckHealth():
                return await self._server.ask(message)
            case ResetPrefixCache():
                return await self._server.ask(message)
            case Freeze():
                return await self._server.ask(message)
            case ChangeAdapters():
                return await self._server.ask(message)
            case Drain():
                return await self._server.ask(message)

    def tell(self, message: Cancel, /) -> None:
        self._server.tell(message)

    async def _generate(self, generate: Generate) -> Accepted | Refused:
        first, streams = self._streams.begin(generate.n)
        is_taken = False
        try:
            taken = await self._server.ask(Asked(first, generate))
            if isinstance(taken, Refused):
                return taken
            is_taken = True
        finally:
            if not is_taken:
                self._streams.forget(first, generate.n)
        assert generate.request_id is not None
        return Accepted(
            generate.request_id,
            taken.num_prompt_tokens,
            streams=streams,
            may_be_refused=taken.may_be_refused,
            prompt_token_ids=taken.prompt_token_ids,
        )


class RemoteAnswerControl:
    """Proxy of operators' orders, which are carried out at every door
    (`sundog.actors.api.in_flight.AnswerControl`).
    """

    def __init__(self, server: Ref[ToServer]) -> None:
        self._server = server

    async def abort(self, answer_ids: tuple[str, ...] | None) -> int:
        return (await self._server.ask(Order("abort", answer_ids))).number

    async def hold(self) -> None:
        await self._server.ask(Order("hold"))

    async def release(self) -> None:
        await self._server.ask(Order("release"))

    async def until_empty(self) -> None:
        await self._server.ask(Order("wait"))

    async def num_under_way(self) -> int:
        return (await self._server.ask(Order("count"))).number


class RemoteExposition:
    """Proxy of /metrics, which the server counts for all doors
    (`sundog.actors.api.exposition.Exposition`).
    """

    def __init__(self, server: Ref[ToServer]) -> None:
        self._server = server

    def count(
        self, method: str, status: str, handler: str, num_bytes: tuple[int, int], elapsed_s: float
    ) -> None:
        with suppress(ActorDied):  # when the server is cut nobody counts any more
            bytes_in, bytes_out = num_bytes
            self._server.tell(
                Answered(
                    method,
                    status,
                    handler=handler,
                    num_bytes_in=bytes_in,
                    num_bytes_out=bytes_out,
                    elapsed_s=elapsed_s,
                )
            )

    async def scrape(self, accept: str) -> tuple[bytes, str]:
        fetched = await self._server.ask(Fetch("metrics", accept))
        return fetched.content, fetched.content_type


class RemoteLive:
    """Proxy of the limits, which the server counts for all doors
    (`sundog.actors.api.limits.ConcurrencyLimits`).
    """

    def __init__(self, server: Ref[ToServer], draining: trio.Event) -> None:
        self._server = server
        self.draining = draining

    async def event(self) -> bytes:
        return (await self._server.ask(Fetch("live", ""))).content


class RemoteLimits:
    """Limits counted for all doors together (`sundog.actors.api.limits.ConcurrencyLimits`)."""

    def __init__(self, server: Ref[ToServer]) -> None:
        self._server = server
        self._tickets = itertools.count()

    async def acquire(self, whose: str, most: int | None) -> Release:
        ticket = next(self._tickets)
        try:
            acquired = await self._server.ask(AcquireLimit(ticket, whose, most))
        except trio.Cancelled:
            self._leave(ticket)
            raise
        if acquired.room_in_s is not None:
            raise LimitReached(acquired.room_in_s)
        return partial(self._leave, ticket)

    def _leave(self, ticket: int) -> None:
        with suppress(ActorDied):
            self._server.tell(ReleaseLimit(ticket))


class LinkedServer:
    """Everything that a door needs of the server."""

    def __init__(
        self,
        server: Ref[ToServer],
        streams: Streams,
        stop: trio.Event,
        on_open: Callable[[AnswerControl], None],
    ) -> None:
        self.llm: LLM = RemoteLLM(server, streams)
        self.control: AnswerControl = RemoteAnswerControl(server)
        self.exposition: Exposition = RemoteExposition(server)
        self.live: LiveEvents = RemoteLive(server, stop)
        self.limits: ConcurrencyLimits = RemoteLimits(server)
        self.stop = stop
        self.open = on_open
        self._server = server
        self._keys: ApiKeys | None = None

    async def keys(self) -> ApiKeys | None:
        """Return the server's allowed keys; they change when it orders a reload."""
        content = (await self._server.ask(Fetch("keys", ""))).content
        if content and self._keys is not None:
            self._keys.replace(ApiKeys.from_json(content))
        elif content:
            self._keys = ApiKeys.from_json(content)
        return self._keys
