"""What a connection has for one request: ASGI's events, handed over in the connection's own stack.

Hypercorn passes them through a memory channel, so that each costs switches of tasks, and an app needs a task
that waits for its client's leaving. An app that knows an `Inbox` attaches itself to it and needs none; any
other app receives from it as ASGI says.
"""

from collections.abc import Awaitable, Callable

import trio
from hypercorn.config import Config
from hypercorn.trio.task_group import TaskGroup, _handle
from hypercorn.typing import (
    AppWrapper,
    ASGIReceiveCallable,
    ASGIReceiveEvent,
    ASGISendEvent,
    HTTPDisconnectEvent,
    Scope,
)

from actors.api.edge.admission import Admission

Take = Callable[[ASGIReceiveEvent], None]
"""Takes an event at once; it may run in the app's own stack, and must not raise."""


class Inbox:
    """The events of one request. At most `most` wait for an app that is not attached."""

    __slots__ = ("_arrived", "_events", "_most", "_room", "_take")

    def __init__(self, most: int) -> None:
        self._most = most
        self._events: list[ASGIReceiveEvent] = []
        self._take: Take | None = None
        self._arrived: trio.Event | None = None
        self._room: trio.Event | None = None

    @staticmethod
    def behind(receive: ASGIReceiveCallable) -> "Inbox | None":
        """The inbox that an app receives from; None under another server."""
        inbox = getattr(receive, "__self__", None)
        return inbox if isinstance(inbox, Inbox) else None

    def attach(self, take: Take) -> None:
        """Have every event handed over from now on, what waits already first."""
        self._take = take
        while self._events:
            take(self._events.pop(0))
        self._has_room()

    def close(self) -> None:
        """The client has left."""
        event: HTTPDisconnectEvent = {"type": "http.disconnect"}
        self._add(event)

    def leave(self) -> None:
        """The app has ended: what comes is dropped, and the connection keeps nothing of its request."""
        self._take = _drop

    async def put(self, event: ASGIReceiveEvent) -> None:
        """The connection has an event; it waits only for an app that is slow to receive."""
        self._add(event)
        while self._take is None and len(self._events) > self._most:
            self._room = self._room or trio.Event()
            await self._room.wait()

    def _add(self, event: ASGIReceiveEvent) -> None:
        """Hand an event over, or keep it until the app receives."""
        if self._take is not None:
            self._take(event)
            return
        self._events.append(event)
        if self._arrived is not None:
            self._arrived.set()

    async def receive(self) -> ASGIReceiveEvent:
        """The next event, for an app that is not attached."""
        while not self._events:
            self._arrived = trio.Event()
            await self._arrived.wait()
        event = self._events.pop(0)
        self._has_room()
        return event

    def _has_room(self) -> None:
        if self._room is not None:
            self._room.set()
            self._room = None


def _drop(event: ASGIReceiveEvent) -> None:
    """Nobody wants it."""


class Requests(TaskGroup):
    """The tasks of one connection: each request is one, with an inbox."""

    def __init__(self, admission: Admission) -> None:
        super().__init__()
        self._admission = admission
        self._is_open = True

    async def spawn_app(
        self, app: AppWrapper, config: Config, scope: Scope, send: Callable[[ASGISendEvent | None], object]
    ) -> Callable[[ASGIReceiveEvent], Awaitable[None]]:
        inbox = Inbox(config.max_app_queue_size)
        self.spawn_with(inbox, app, config, scope, send)
        return inbox.put

    def spawn_with(
        self,
        inbox: Inbox,
        app: AppWrapper,
        config: Config,
        scope: Scope,
        send: Callable[[ASGISendEvent | None], object],
    ) -> None:
        """A request as a task, once it is admitted; its events come from this inbox."""

        def begin() -> None:
            if self._is_open:
                threads = trio.to_thread.run_sync, trio.from_thread.run
                self.spawn(_handle, app, config, scope, inbox.receive, send, *threads)

        self._admission.enter(begin)

    def close(self) -> None:
        """The connection has ended: nothing begins any more."""
        self._is_open = False
