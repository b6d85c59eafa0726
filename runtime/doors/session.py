"""DoorSession: one door's representative in the server's process.

Laws: the graph never waits for a door, whose unread deltas merge; a door's requests are cancelled when the
door is gone.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar

import trio

from sundog.actors.api.limits import LimitReached, LocalLimits, Release
from sundog.actors.front.async_llm import FromClients
from sundog.actors.kernel.actor import Actor, ActorDied, Handled, Ref, Reply, answer
from sundog.actors.kernel.reply import Ask
from sundog.actors.kernel.stream import DeltaStream
from sundog.actors.messages import (
    Accepted,
    Cancel,
    ChangeAdapters,
    CheckHealth,
    Drain,
    Freeze,
    Refused,
    ResetPrefixCache,
)
from sundog.runtime.doors.messages import (
    AcquireLimit,
    Answered,
    Asked,
    CannotListen,
    Deltas,
    Fetch,
    Fetched,
    LimitAcquired,
    Number,
    Order,
    Ready,
    ReleaseLimit,
    StreamNews,
    Taken,
    ToDoor,
    ToServer,
)
from sundog.runtime.wire.link import Link

R = TypeVar("R")
Q = TypeVar("Q")

MOST_UNSENT_BYTES = 2**22
"""Most bytes that may be unsent to a door; beyond that, deltas are merged."""


class SharedServer(Protocol):
    """Parts of a server that all doors share."""

    async def fetch(self, fetch: Fetch) -> Fetched: ...

    async def order(self, order: Order) -> Number: ...

    @property
    def limits(self) -> LocalLimits: ...

    def count(self, answered: Answered) -> None: ...


class DoorSession(Actor[ToServer]):
    """Submits a door's requests to the graph, and sends the new output of its streams once a step."""

    def __init__(self, number: int, llm: Ref[FromClients], server: SharedServer) -> None:
        super().__init__(f"door-session-{number}")
        self._llm = llm
        self._server = server
        self.nursery: trio.Nursery | None = None
        """Nursery for waits that must not block the session."""
        self._streams: dict[int, tuple[str, DeltaStream]] = {}
        self._num_unfinished: dict[str, int] = {}
        self._held_limits: dict[int, Release] = {}
        """Counts under limits that the door holds, by ticket."""
        self._due: list[int] = []
        self._is_due = trio.Event()
        self.ready: Reply[Ready | CannotListen] = Reply()
        """Reply with the door's port, or why it cannot listen."""

    def handle(self, message: ToServer) -> Handled:
        match message:
            case Asked():
                return answer(message, self._ask(message))
            case Cancel():
                self._cancel(message.request_id)
            case CheckHealth():
                return answer(message, self._request(message))
            case ResetPrefixCache() | Freeze() | ChangeAdapters() | Drain():
                return answer(message, self._request(message))
            case Fetch():
                return answer(message, self._later(partial(self._server.fetch, message)))
            case Order():
                return answer(message, self._later(partial(self._server.order, message)))
            case AcquireLimit():
                return answer(message, self._acquire_limit(message))
            case ReleaseLimit():
                self._release_limit(message.ticket)
            case Answered():
                self._server.count(message)
            case Ready() | CannotListen():
                self.ready.set(message)
            case _:
                self.unknown(message)
        return None

    def _later(self, ask: Callable[[], Awaitable[R]]) -> Reply[R]:
        reply: Reply[R] = Reply()

        async def wait() -> None:
            reply.set(await ask())

        assert self.nursery is not None
        self.nursery.start_soon(wait)
        return reply

    def _request(self, message: Ask[Q, R]) -> Reply[R]:
        """Send a request to the graph; a graph that has ended, because the server was aborted, gives an
        error.
        """
        try:
            return self._llm.request(message)  # type: ignore[arg-type]  # a Q is one of its messages
        except ActorDied as error:
            reply: Reply[R] = Reply()
            reply.fail(error)
            return reply

    def _acquire_limit(self, message: AcquireLimit) -> Reply[LimitAcquired]:
        reply: Reply[LimitAcquired] = Reply()
        try:
            self._held_limits[message.ticket] = self._server.limits.acquire_now(message.whose, message.most)
        except LimitReached as full:
            reply.set(LimitAcquired(full.room_in_s))
        else:
            reply.set(LimitAcquired(None))
        return reply

    def _release_limit(self, ticket: int) -> None:
        if (leave := self._held_limits.pop(ticket, None)) is not None:
            leave()

    def _cancel(self, request_id: str) -> None:
        with suppress(ActorDied):
            self._llm.tell(Cancel(request_id))

    def _ask(self, asked: Asked) -> Reply[Taken | Refused]:
        taken: Reply[Taken | Refused] = Reply()
        self._num_unfinished[_name(asked)] = asked.generate.n
        self._request(asked.generate).then(partial(self._accepted, asked, taken))
        return taken

    def _accepted(
        self,
        asked: Asked,
        taken: Reply[Taken | Refused],
        accepted: Accepted | Refused | None,
        error: BaseException | None,
    ) -> None:
        """Reply to the door before the first delta, which another task sends."""
        if not isinstance(accepted, Accepted):
            self._num_unfinished.pop(_name(asked), None)
            return taken.take_answer(accepted, error)
        taken.set(Taken(accepted.num_prompt_tokens, accepted.may_be_refused, accepted.prompt_token_ids))
        for number, stream in enumerate(accepted.streams, asked.first_stream):
            self._streams[number] = _name(asked), stream
            stream.watch(partial(self._has_more, number))

    def _has_more(self, number: int) -> None:
        self._due.append(number)
        self._is_due.set()

    async def send_deltas(self, door: Ref[ToDoor], link: Link) -> None:
        """Send new output to the door, again each time it has been written to the link, until cancelled."""
        while True:
            await self._is_due.wait()
            await link.flush(MOST_UNSENT_BYTES)
            self._is_due = trio.Event()
            due, self._due = self._due, []
            door.tell(Deltas(tuple([part for number in due if (part := self._part(number)) is not None])))

    def _part(self, number: int) -> StreamNews | None:
        name, stream = self._streams[number]
        if (delta := stream.take()) is None:
            return None
        if delta.finish_reason is not None:
            del self._streams[number]
            self._num_unfinished[name] -= 1
            if not self._num_unfinished[name]:
                del self._num_unfinished[name]
        return StreamNews(number, delta)

    def leave(self) -> None:
        """Cancel the requests and release the counts of a door that is gone."""
        for name in list(self._num_unfinished):
            self._cancel(name)
        for ticket in list(self._held_limits):
            self._release_limit(ticket)


def _name(asked: Asked) -> str:
    assert asked.generate.request_id is not None, "the API gives every request its id"
    return asked.generate.request_id
