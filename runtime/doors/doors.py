"""Doors of a server: processes that serve HTTP at one port, in front of the server's graph.

The kernel distributes connections among them (SO_REUSEPORT). A door that dies or does not respond is
replaced: its connections are lost, its requests are cancelled, and the others are not affected.
"""

import logging
from collections.abc import Callable
from contextlib import suppress

import trio

from sundog.actors.api.exposition import OwnExposition
from sundog.actors.api.front import Behind
from sundog.actors.api.limits import LocalLimits
from sundog.actors.config import ConfigError
from sundog.actors.engine.supervisor import Backoff
from sundog.actors.kernel.actor import ActorDied, Ref
from sundog.runtime.doors.messages import (
    DOOR_MESSAGES,
    Answered,
    CannotListen,
    Fetch,
    Fetched,
    Number,
    Order,
    Stop,
    ToDoor,
)
from sundog.runtime.doors.session import DoorSession
from sundog.runtime.wire.frames import WireError
from sundog.runtime.wire.link import Link
from sundog.runtime.worker.forks import ForkServerDied
from sundog.runtime.worker.supervision import Launcher, RunningProcess

log = logging.getLogger("sundog.api")

SLOW_S = 5.0
"""Seconds that a door may take beyond the grace period when the server stops."""


class DoorDied(Exception):
    """Raised if a door process ended, or does not respond."""


class Doors:
    """`num_doors` processes at one `port` (`sundog.actors.api.front.Front`), started by `launcher`.

    A door that has not responded for `stall_s` is replaced.
    """

    def __init__(self, num_doors: int, launcher: Launcher, port: int, grace_s: float, stall_s: float) -> None:
        self._num_doors = num_doors
        self._launcher = launcher
        self._port = port
        self._grace_s, self._stall_s = grace_s, stall_s
        self._backoff = Backoff()
        self._receivers: dict[int, Ref[ToDoor]] = {}
        self._is_held = self._has_keys = False

    async def serve(self, behind: Behind, *, task_status: trio.TaskStatus[int]) -> None:
        """Serve until stopped, and until the last answer has ended or the grace period is over."""
        shared = Shared(self, behind)
        self._has_keys = behind.keys is not None
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as opening:
                for number in range(self._num_doors):
                    opening.start_soon(nursery.start, self._keep, number, behind, shared)
            task_status.started(self._port)
            await behind.stop.wait()
            for receiver in self._receivers.values():
                receiver.tell(Stop())
            nursery.cancel_scope.deadline = trio.current_time() + self._grace_s + SLOW_S

    async def order(self, order: Order) -> Number:
        """Send an order to every door and sum their answers; a door that dies meanwhile counts 0."""
        numbers: list[int] = []

        async def ask(receiver: Ref[ToDoor]) -> None:
            with suppress(ActorDied):
                numbers.append((await receiver.ask(order)).number)

        if order.what in ("hold", "release"):
            self._is_held = order.what == "hold"
        async with trio.open_nursery() as nursery:
            for receiver in self._receivers.values():
                nursery.start_soon(ask, receiver)
        return Number(sum(numbers))

    async def keys_changed(self) -> None:
        """Make every door reload the allowed keys."""
        await self.order(Order("keys"))

    async def _keep(
        self, number: int, behind: Behind, shared: "Shared", *, task_status: trio.TaskStatus[None]
    ) -> None:
        """Run a door, and restart it when it dies, until stopped. A door that never opens ends the run."""
        door = _Restarts(task_status)
        while not behind.stop.is_set():
            try:
                await self._run(number, behind, shared, door.opened)
            except DoorDied as error:
                if behind.stop.is_set():
                    return
                wait_s = door.died(self._backoff)
                if wait_s is None:
                    raise
                log.error("door %d: %s; another takes its place in %g s", number, error, wait_s)
                with trio.move_on_after(wait_s):
                    await behind.stop.wait()

    async def _run(self, number: int, behind: Behind, shared: "Shared", opened: Callable[[], None]) -> None:
        """Run a door process to its end; raises DoorDied, ConfigError if it cannot listen."""
        try:
            begun = await self._launcher.begin(number)
        except (WireError, ForkServerDied) as error:
            raise DoorDied(str(error)) from error
        link = Link(begun.connected, DOOR_MESSAGES, begun.name)
        try:
            await self._run_link(link, DoorSession(number, behind.llm, shared), number, behind.stop, opened)
        finally:
            how = await _end(begun, behind.stop)
        raise DoorDied(f"{begun.name} {how}; the link ended as {link.why_ended}")

    async def _run_link(
        self, link: Link, session: DoorSession, number: int, stop: trio.Event, opened: Callable[[], None]
    ) -> None:
        link.export(session)
        hold = session.ref("doors")
        async with trio.open_nursery() as nursery:
            session.nursery = nursery
            await nursery.start(session.live)
            nursery.start_soon(self._attend, link, session, number, stop, opened, nursery)
            try:
                await link.run()
            finally:
                self._receivers.pop(number, None)
                session.leave()
                hold.close()
            nursery.cancel_scope.cancel()

    async def _attend(
        self,
        link: Link,
        session: DoorSession,
        number: int,
        stop: trio.Event,
        opened: Callable[[], None],
        nursery: trio.Nursery,
    ) -> None:
        with suppress(ActorDied):
            receiver: Ref[ToDoor] = await link.open("door-receiver", session.name)
            if isinstance(ready := await session.ready.wait(), CannotListen):
                raise ConfigError(ready.why)
            if self._is_held:
                await receiver.ask(Order("hold"))
            if self._has_keys:  # they may have changed since it fetched them
                await receiver.ask(Order("keys"))
            self._receivers[number] = receiver
            opened()
            if stop.is_set():
                receiver.tell(Stop())
            nursery.start_soon(self._watch, link, receiver)
            await session.send_deltas(receiver, link)

    async def _watch(self, link: Link, receiver: Ref[ToDoor]) -> None:
        while link.why_ended is None:
            await trio.sleep(self._stall_s / 2)
            self._launcher.tend()
            with trio.move_on_after(self._stall_s) as waiting, suppress(ActorDied):
                await receiver.ask(Order("count"))
            if waiting.cancelled_caught:
                link.end(f"it has not answered for {self._stall_s:g} s")


class _Restarts:
    """Restart history of one door: whether it was ever open, and the number of deaths since."""

    def __init__(self, task_status: trio.TaskStatus[None]) -> None:
        self._task_status = task_status
        self._has_opened = False
        self._num_crashes = 0

    def opened(self) -> None:
        if not self._has_opened:
            self._task_status.started()
        self._has_opened, self._num_crashes = True, 0

    def died(self, backoff: Backoff) -> float | None:
        """Return the seconds to wait before the next start; None for no further one."""
        self._num_crashes += 1
        return backoff.wait_s(self._num_crashes) if self._has_opened else None


async def _end(begun: RunningProcess, stop: trio.Event) -> str:
    with trio.CancelScope(shield=True):
        if not stop.is_set():
            begun.kill()
        how = await begun.ended()
    return how


class Shared:
    """Parts of the server that all doors share (`sundog.runtime.doors.session.SharedServer`)."""

    def __init__(self, doors: Doors, behind: Behind) -> None:
        self._exposition = OwnExposition(behind.registry, behind.live.posted)
        self._live, self._keys = behind.live, behind.keys
        self.limits = LocalLimits()
        self.order = doors.order

    async def fetch(self, fetch: Fetch) -> Fetched:
        if fetch.what == "live":
            return Fetched(await self._live.event(), "")
        if fetch.what == "keys":
            return Fetched(b"" if self._keys is None else self._keys.to_json(), "")
        return Fetched(*await self._exposition.scrape(fetch.accept))

    def count(self, answered: Answered) -> None:
        """Count a finished HTTP request."""
        num_bytes = answered.num_bytes_in, answered.num_bytes_out
        count = self._exposition.count
        count(answered.method, answered.status, answered.handler, num_bytes, answered.elapsed_s)
