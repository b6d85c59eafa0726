"""Link: one connection, over which two processes reach each other's actors by channels.

Each end exports actors by name, and opens channels to those of the other. A channel is a Ref like any other,
with the laws of `docs/kernel.md`. When the connection ends, for whatever reason, every task that waits for an
answer gets an error, every channel is closed, and every caller from the other end has hung up.
"""

import logging
import socket
from collections import deque
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol

import trio

from sundog.actors.kernel.actor import Actor, ActorDied, Ref, Reply, Tap
from sundog.actors.kernel.mailbox import Mailbox, MailboxFull
from sundog.actors.kernel.owner import Owner, Watcher
from sundog.runtime.wire.frames import Frame, FrameKind, Frames, WireError
from sundog.runtime.wire.records import Packer, Unpacker


class Carrier(Protocol):
    """Operations that a channel needs of its link."""

    def send(
        self, kind: FrameKind, channel: int, message: object, reply: Reply[Any] | None = None
    ) -> None: ...

    def answer(self, number: int, value: object, error: BaseException | None) -> None: ...

    def signal(self, kind: FrameKind, channel: int) -> None: ...


class Outlet(Owner[Any]):
    """Owner of a mailbox whose messages are sent at once; it keeps those for which the other end has no
    room.
    """

    def __init__(self, link: Carrier, channel: int, name: str) -> None:
        self._link = link
        self._channel = channel
        self.mailbox: Mailbox[Any] = Mailbox(name, self)

    def opened(self, capacity: int) -> None:
        """Set the capacity of the remote actor's mailbox; 0: unbounded."""
        self.mailbox.capacity = capacity or None
        self.mailbox.is_free = True

    def receive(self, message: object, reply: Reply[object] | None) -> None:
        mailbox = self.mailbox
        mailbox.num_handled += 1
        mailbox.last_s = self.clock.now_s()
        self._link.send(FrameKind.TELL if reply is None else FrameKind.ASK, self._channel, message, reply)
        if mailbox.capacity is not None:
            mailbox.num_away += 1
            mailbox.most_waiting = max(mailbox.most_waiting, mailbox.num_away)
            mailbox.is_free = not (mailbox.is_full or mailbox.is_closed)

    def taken(self) -> None:
        """Record that the oldest message has left the remote mailbox, which makes room for one more."""
        mailbox = self.mailbox
        mailbox.num_away -= 1
        mailbox.is_free = not mailbox.is_closed
        mailbox.offer_room()

    def ended(self) -> None:
        """The remote actor stopped accepting messages; pending asks resolve separately."""
        if not self.mailbox.is_closed:
            self.mailbox.close()

    def wake(self) -> None:
        if not self.mailbox.is_closed:
            self._link.signal(FrameKind.HANG_UP, self._channel)
            self.mailbox.close()


class Inlet(Watcher):
    """Holder of a Ref for a sender at the other end, which reports when its messages are taken."""

    def __init__(self, link: Carrier, channel: int, actor: Actor[Any], sender: str, counted: bool) -> None:
        self._link = link
        self._channel = channel
        self._mailbox = actor.mailbox
        self._ref = actor.ref(sender, counted=counted)
        self._due: deque[int] = deque()
        """Numbers of messages begun by the actor when each waiting one is taken."""
        self._mailbox.watchers.append(self)

    def deliver(self, message: Any, number: int | None) -> None:
        """Deliver a message to the actor; the answer will have this number. Raises MailboxFull if there is no
        room.
        """
        mailbox = self._mailbox
        is_bounded = mailbox.capacity is not None
        if is_bounded and not mailbox.is_free:
            self._due.append(mailbox.num_handled + len(mailbox.queue) + 1)
        elif is_bounded:
            self._link.signal(FrameKind.TAKEN, self._channel)
        try:
            if number is None:
                return self._ref.tell(message)
            reply: Reply[Any] = self._ref.request(message)
        except ActorDied as error:
            if number is not None:
                self._link.answer(number, None, error)
            return
        reply.then(lambda value, error: self._link.answer(number, value, error))

    def taken(self) -> None:
        if self._due and self._due[0] <= self._mailbox.num_handled + 1:
            self._due.popleft()
            self._link.signal(FrameKind.TAKEN, self._channel)

    def closed(self) -> None:
        self._link.signal(FrameKind.ENDED, self._channel)

    def hang_up(self) -> None:
        """Drop the Ref, since the sender is gone."""
        self._mailbox.watchers.remove(self)
        self._ref.close()


log = logging.getLogger("sundog.wire")

READ_BYTES = 2**18
MOST_NUMBER = 2**32 - 1
MOST_UNSENT_BYTES = 2**31
"""Most bytes that may wait for an end that does not read; then the link is cut."""


class Link:
    """End of a connection; `peer` is the other end's name for people.

    `messages` are the types of messages, the same at both ends.
    """

    def __init__(self, connected: socket.socket, messages: Sequence[type], peer: str) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._packer = Packer(messages)
        self._unpacker = Unpacker(messages)
        self._exports: dict[str, Actor[Any]] = {}
        self._inlets: dict[int, Inlet] = {}
        self._outlets: dict[int, Outlet] = {}
        self._replies: dict[int, Reply[Any]] = {}
        self._opening: dict[int, Reply[int]] = {}
        """Channels that this end has requested and that are not open yet."""
        self._last_number = self._last_channel = 0
        self._unsent = bytearray()
        self._has_unsent = trio.Event()
        self._is_held = False
        """Whether frames are collected in `_unsent`, to be sent together."""
        self.peer = peer
        self.why_ended: str | None = None
        """Reason of the end; None while the link is up."""
        self.num_sent = self.num_sent_bytes = 0

    def export(self, actor: Actor[Any]) -> None:
        """Let the other end reach this actor by its name."""
        self._exports[actor.name] = actor

    async def open(self, name: str, sender: str, *, counted: bool = True, tap: Tap | None = None) -> Ref[Any]:
        """Return the address of an actor at the other end; ActorDied if there is none of this name."""
        self._check_up()
        opened: Reply[int] = Reply()
        channel = self._last_channel = _next(self._last_channel, self._opening.keys() | self._outlets.keys())
        self._opening[channel] = opened
        kind = FrameKind.OPEN if counted else FrameKind.OPEN_LISTENER
        self._send_frame(Frame(kind, channel, body=f"{name}\n{sender}".encode()))
        outlet = self._outlets[channel] = Outlet(self, channel, name)
        try:
            outlet.opened(await opened.wait())
        except BaseException:
            self.signal(FrameKind.HANG_UP, channel)
            raise
        return Ref(outlet.mailbox, sender, tap, counted=counted)

    async def run(self) -> None:
        """Carry frames until the connection ends, or until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                await self._read()
                nursery.cancel_scope.cancel()
        finally:
            self.end("the link was closed")

    async def flush(self, most_bytes: int = 0) -> None:
        """Wait until at most `most_bytes` are unsent, or the link has ended."""
        while len(self._unsent) > most_bytes and self.why_ended is None:  # noqa: ASYNC110  # once in the life of a process
            await trio.sleep(0.001)

    def end(self, why: str) -> None:
        """Cut the connection; idempotent."""
        if self.why_ended is not None:
            return
        self._let_go()
        self.why_ended = why
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()
        died = f"{self.peer} is gone: {why}"
        for outlet in self._outlets.values():
            outlet.ended()
        replies, self._replies = self._replies, {}
        opening, self._opening = self._opening, {}
        for reply in [*replies.values(), *opening.values()]:
            reply.fail(ActorDied(died))
        inlets, self._inlets = self._inlets, {}
        for inlet in inlets.values():
            inlet.hang_up()

    # --- out ---------------------------------------------------------------------------------------

    def send(self, kind: FrameKind, channel: int, message: object, reply: Reply[Any] | None = None) -> None:
        """Send a message from a local sender to a remote actor. Never waits."""
        tag, body = self._packer.pack(message)
        self._send_frame(
            Frame(kind, channel, number=0 if reply is None else self._number(reply), tag=tag, body=body)
        )

    def answer(self, number: int, value: object, error: BaseException | None) -> None:
        """Send the answer to a question of the other end, or the reason why there is none."""
        if error is None:
            try:
                return self._send_frame(Frame(FrameKind.ANSWER, 0, number, *self._packer.pack(value)))
            except WireError as unsendable:
                error = unsendable
        self._send_frame(Frame(FrameKind.FAILED, 0, number, body=str(error).encode(errors="replace")))

    def signal(self, kind: FrameKind, channel: int) -> None:
        """Send a change of a channel's state."""
        if kind is FrameKind.HANG_UP:
            self._outlets.pop(channel, None)
        self._send_frame(Frame(kind, channel))

    def _number(self, reply: Reply[Any]) -> int:
        self._check_up()
        number = self._last_number = _next(self._last_number, self._replies)
        self._replies[number] = reply
        return number

    def _check_up(self) -> None:
        if self.why_ended is not None:
            raise ActorDied(f"{self.peer} is gone: {self.why_ended}")

    def _send_frame(self, frame: Frame) -> None:
        if self.why_ended is not None:
            return
        data: bytes | bytearray = frame.packed()
        self.num_sent += 1
        self.num_sent_bytes += len(data)
        if not self._unsent and not self._is_held:
            data = self._rest_of(data)
        if data:
            self._unsent += data
            if not self._is_held:
                self._has_unsent.set()

    def _rest_of(self, data: bytes | bytearray) -> bytes | bytearray:
        """Send what the socket takes now; return the rest."""
        try:
            return data[self._socket.send(data) :]
        except BlockingIOError:
            return data
        except OSError:
            return b""  # the reading task learns of it, too, and ends the link

    def _take_all(self, frames: Iterator[Frame]) -> None:
        """Take frames that came together; what is sent meanwhile, such as answers, leaves in one piece."""
        self._is_held = not self._unsent
        try:
            for frame in frames:
                self._take(frame)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        if self._is_held:
            self._is_held = False
            if self._unsent:
                self._unsent = bytearray(self._rest_of(self._unsent))
            if self._unsent:
                self._has_unsent.set()

    async def _write(self) -> None:
        with suppress(trio.ClosedResourceError):
            while True:
                await self._has_unsent.wait()
                await trio.lowlevel.wait_writable(self._socket)
                try:
                    del self._unsent[: self._socket.send(self._unsent)]
                except BlockingIOError:
                    continue
                except OSError as error:
                    return self.end(f"it cannot be sent anything: {error}")
                if not self._unsent:
                    self._has_unsent = trio.Event()
                elif len(self._unsent) > MOST_UNSENT_BYTES:
                    return self.end(f"it has left {len(self._unsent)} bytes unread")

    # --- in ----------------------------------------------------------------------------------------

    async def _read(self) -> None:
        frames = Frames()
        try:
            while self.why_ended is None:
                await trio.lowlevel.wait_readable(self._socket)
                with suppress(BlockingIOError):
                    data = self._socket.recv(READ_BYTES)
                    if not data:
                        return self.end("it has closed the link")
                    self._take_all(frames.feed(data))
        except (trio.ClosedResourceError, OSError) as error:
            self.end(str(error) or "it was closed")
        except WireError as error:
            log.warning("the link to %s is cut: it sent %s", self.peer, error)
            self.end(f"it sent {error}")

    def _take(self, frame: Frame) -> None:
        match frame.kind:
            case FrameKind.OPEN | FrameKind.OPEN_LISTENER:
                self._open(frame)
            case FrameKind.ANSWER | FrameKind.FAILED:
                self._answered(frame)
            case FrameKind.OPENED | FrameKind.NOT_OPENED:
                self._opened(frame)
            case FrameKind.TAKEN | FrameKind.ENDED:
                outlet = self._outlets.get(frame.channel)  # None: this end has hung up
                if outlet is not None:
                    outlet.taken() if frame.kind is FrameKind.TAKEN else outlet.ended()
            case FrameKind.TELL | FrameKind.ASK | FrameKind.HANG_UP:
                self._deliver(frame)

    def _deliver(self, frame: Frame) -> None:
        inlet = self._inlets.get(frame.channel)
        if frame.kind is FrameKind.HANG_UP:
            if inlet is not None:  # None: it could not be opened
                del self._inlets[frame.channel]
                inlet.hang_up()
            return
        if inlet is None:
            raise WireError(f"a message for the channel {frame.channel}, which is not open")
        message = self._unpacker.unpack(frame.tag, frame.body)
        try:
            inlet.deliver(message, frame.number if frame.kind is FrameKind.ASK else None)
        except MailboxFull as error:
            raise WireError(f"more than a mailbox takes: {error}") from error

    def _open(self, frame: Frame) -> None:
        name, _, sender = frame.body.decode(errors="replace").partition("\n")
        actor = self._exports.get(name)
        if frame.channel in self._inlets:
            raise WireError(f"a second channel {frame.channel}")
        if actor is None or actor.mailbox.is_closed:
            why = "there is no actor of this name" if actor is None else "it has ended"
            body = f"{name} cannot be reached: {why}".encode()
            return self._send_frame(Frame(FrameKind.NOT_OPENED, frame.channel, body=body))
        self._inlets[frame.channel] = Inlet(
            self, frame.channel, actor=actor, sender=sender, counted=frame.kind is FrameKind.OPEN
        )
        self._send_frame(Frame(FrameKind.OPENED, frame.channel, actor.mailbox.capacity or 0))

    def _opened(self, frame: Frame) -> None:
        opened = self._opening.pop(frame.channel, None)
        if opened is None:
            raise WireError(f"an answer for the channel {frame.channel}, which was not asked for")
        if frame.kind is FrameKind.OPENED:
            opened.set(frame.number)
        else:
            opened.fail(ActorDied(frame.body.decode(errors="replace")))

    def _answered(self, frame: Frame) -> None:
        reply = self._replies.pop(frame.number, None)
        if reply is None:
            raise WireError(f"an answer to the question {frame.number}, which was not asked")
        if frame.kind is FrameKind.FAILED:
            reply.fail(ActorDied(frame.body.decode(errors="replace")))
        else:
            reply.set(self._unpacker.unpack(frame.tag, frame.body))


def _next(last: int, used: Container[int]) -> int:
    while True:
        last = last % MOST_NUMBER + 1
        if last not in used:
            return last
