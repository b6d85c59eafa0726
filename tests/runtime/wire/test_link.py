"""Cut, flooded or corrupted links: waiting callers get errors, and actors otherwise act as in one process."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from sundog.actors.kernel.actor import ActorDied
from sundog.runtime.wire.frames import HEADER, MOST_BYTES, Frame, FrameKind, Frames, WireError
from sundog.runtime.wire.link import Link
from tests.actors.clerk import Clerk, Note
from tests.actors.places import MESSAGES, linked
from tests.patience import HANGS_S

pytestmark = pytest.mark.wall_clock

NUM_NOTES = 4


class Relay:
    """Carries bytes from one socket to another until so many have gone by; then both are cut."""

    def __init__(self, most_bytes: int | None = None) -> None:
        self.most_bytes = most_bytes
        self.sent = b""

    async def carry(self, source: trio.socket.SocketType, sink: trio.socket.SocketType) -> None:
        try:
            while self.most_bytes is None or len(self.sent) < self.most_bytes:
                room = 2**16 if self.most_bytes is None else self.most_bytes - len(self.sent)
                data = await source.recv(room)
                if not data:
                    break
                self.sent += data
                await trio.SocketStream(sink).send_all(data)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        for end in (source, sink):
            end.close()


@asynccontextmanager
async def relayed(out: Relay, back: Relay) -> AsyncIterator[tuple[Link, Link]]:
    """Two ends, with what they send each other going through relays."""
    near, near_relay = socket.socketpair()
    far, far_relay = socket.socketpair()
    left, right = (trio.socket.from_stdlib_socket(each) for each in (near_relay, far_relay))
    for each in (near_relay, far_relay):
        each.setblocking(False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(out.carry, left, right)
        nursery.start_soon(back.carry, right, left)
        yield Link(near, MESSAGES, "the far end"), Link(far, MESSAGES, "the near end")


async def converse(out: Relay, back: Relay) -> tuple[Clerk, list[object]]:
    """A short life of a channel: notes told and asked, and the hang-up; what was handled and answered."""
    clerk = Clerk()
    answers: list[object] = []
    with trio.fail_after(HANGS_S):
        async with relayed(out, back) as (near, far), trio.open_nursery() as nursery:
            hold = clerk.ref("hold")
            await nursery.start(clerk.live)
            far.export(clerk)
            nursery.start_soon(far.run)
            nursery.start_soon(near.run)
            try:
                ref = await near.open("clerk", "test")
                hold.close()
                ref.tell(Note("test", 0))
                replies = [ref.request(Note("test", number)) for number in range(1, NUM_NOTES)]
                for reply in replies:
                    try:
                        answers.append(await reply.wait())
                    except ActorDied as error:
                        answers.append(error)
                ref.close()
            except ActorDied as error:
                answers.append(error)
            hold.close()
            while clerk.mailbox.num_callers or not clerk.mailbox.is_closed:
                await trio.sleep(0.001)
            near.end("the test is over")
    return clerk, answers


async def cuts(of: Relay) -> list[int]:
    """After every frame, within its header, and within its body."""
    sizes = [HEADER.size + len(frame.body) for frame in Frames().feed(of.sent)]
    begins = [sum(sizes[:n]) for n in range(len(sizes) + 1)]
    return sorted(
        {0, *begins, *(b + 7 for b in begins[:-1]), *(b + s - 1 for b, s in zip(begins, sizes, strict=False))}
    )


async def test_a_link_cut_anywhere_leaves_nobody_waiting() -> None:
    """At every frame and within each, in both directions: what was handled is how all that was sent began."""
    out, back = Relay(), Relay()
    clerk, answers = await converse(out, back)
    assert answers == [1, 2, 3] and len(clerk.handled) == NUM_NOTES
    num_answered = set()
    for direction, whole in enumerate((out, back)):
        for most_bytes in await cuts(whole):
            relays = [Relay(), Relay()]
            relays[direction].most_bytes = most_bytes
            clerk, answers = await converse(*relays)
            numbers = [note.number for note in clerk.handled]
            assert numbers == list(range(len(numbers)))
            good = [answer for answer in answers if isinstance(answer, int)]
            assert good == list(range(1, len(good) + 1)) and len(good) < len(numbers) + 1
            num_answered.add(len(good))
    assert num_answered == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (HEADER.pack(MOST_BYTES + 1, FrameKind.TELL, 1, 0, 1), f"a frame of {MOST_BYTES + 1} bytes"),
        (HEADER.pack(0, 77, 1, 0, 1), "unknown kind 77"),
        (Frame(FrameKind.TELL, 9, 0, 1, b"\x94").packed(), "the channel 9, which is not open"),
        (Frame(FrameKind.ANSWER, 0, 5, 2, b"\x01").packed(), "the question 5, which was not asked"),
        (
            Frame(FrameKind.OPEN, 1, 1, body=b"clerk\nx").packed()
            + Frame(FrameKind.TELL, 1, 0, 1, b"\x01").packed(),
            "a Note that is none",
        ),
        (
            Frame(FrameKind.OPEN, 1, 1, body=b"clerk\nx").packed()
            + Frame(FrameKind.TELL, 1, 0, 99, b"\x01").packed(),
            "unknown tag 99",
        ),
        (Frame(FrameKind.OPEN, 1, 1, body=b"clerk\nx").packed() * 2, "a second channel 1"),
        (b"GET / HTTP/1.1\r\n\r\n", "a frame of"),
    ],
)
async def test_an_end_that_lies_is_cut_by_name_and_harms_nobody(
    said: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its link ends, with one line that says what it sent; the actor goes on."""
    liar, honest = socket.socketpair()
    link = Link(honest, MESSAGES, "the liar")
    clerk = Clerk()
    async with trio.open_nursery() as nursery:
        hold = clerk.ref("hold")
        await nursery.start(clerk.live)
        link.export(clerk)
        with liar:
            liar.send(said)
            with trio.fail_after(HANGS_S):
                await link.run()
        assert link.why_ended is not None and why in link.why_ended and why in caplog.text
        assert clerk.mailbox.num_callers == 1 and await hold.ask(Note("test", 1)) == 1
        hold.close()


async def test_a_name_that_nobody_has_is_refused_at_once() -> None:
    """And so is an actor that has ended; the link goes on."""
    clerk = Clerk()
    async with linked("unix") as (near, far), trio.open_nursery() as nursery:
        nursery.start_soon(near.run)
        nursery.start_soon(far.run)
        far.export(clerk)
        with pytest.raises(ActorDied, match="nobody cannot be reached: there is no actor of this name"):
            await near.open("nobody", "test")
        async with trio.open_nursery() as life:
            hold = clerk.ref("hold")
            life.start_soon(clerk.live)
            (await near.open("clerk", "test")).close()
            hold.close()
        with pytest.raises(ActorDied, match="clerk cannot be reached: it has ended"):
            await near.open("clerk", "test")
        nursery.cancel_scope.cancel()


async def test_what_cannot_be_sent_costs_its_message_alone() -> None:
    """It is refused where it is sent, and what follows goes on, in order."""
    clerk = Clerk()
    async with linked("unix") as (near, far), trio.open_nursery() as nursery:
        nursery.start_soon(near.run)
        nursery.start_soon(far.run)
        far.export(clerk)
        hold = clerk.ref("hold")
        await nursery.start(clerk.live)
        ref = await near.open("clerk", "test")
        assert await ref.ask(Note("test", 1, request_id="a")) == 1
        for unsendable in (Note("test", 2, "\ud800"), Note("test", 2**70)):
            with pytest.raises(WireError, match="Note cannot be sent"):
                ref.tell(unsendable)
        assert await ref.ask(Note("test", 3, request_id="a")) == 3
        assert [note.request_id for note in clerk.handled] == ["a", "a"]
        hold.close()
        ref.close()
        nursery.cancel_scope.cancel()


async def test_an_end_that_does_not_read_holds_up_no_sender_and_loses_nothing() -> None:
    """What the socket does not take is sent when it does."""
    clerk = Clerk()
    async with linked("unix") as (near, far), trio.open_nursery() as nursery:
        far.export(clerk)
        hold = clerk.ref("hold")
        await nursery.start(clerk.live)
        nursery.start_soon(near.run)
        reading = await nursery.start(cancellable, far)
        ref = await near.open("clerk", "test")
        reading.cancel()
        for number in range(2000):
            ref.tell(Note("test", number, "x" * 1000))
        assert len(clerk.handled) < 2000
        nursery.start_soon(far._read)
        assert await ref.ask(Note("test", 2000)) == 2000
        assert [note.number for note in clerk.handled] == list(range(2001))
        hold.close()
        ref.close()
        nursery.cancel_scope.cancel()


async def cancellable(link: Link, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
    """Read until cancelled, and leave the link as it is."""
    with trio.CancelScope() as scope:
        task_status.started(scope)
        await link._read()


async def test_numbers_that_wrap_meet_neither_open_channels_nor_open_questions() -> None:
    """The counter of questions starts shortly before 2^32; each question has its own answer."""
    near_socket, far_socket = socket.socketpair()
    near, far = Link(near_socket, MESSAGES, "the far end"), Link(far_socket, MESSAGES, "the near end")
    clerk = Clerk()
    hold = clerk.ref("hold")
    with trio.fail_after(HANGS_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(clerk.live)
            far.export(clerk)
            nursery.start_soon(far.run)
            nursery.start_soon(near.run)
            refs = [await near.open("clerk", f"test-{number}") for number in range(5)]
            expected = await refs[0].ask(Note("test", 0))
            near._last_number = 2**32 - 4
            answers = [await ref.ask(Note("test", number)) for number in range(4) for ref in refs]
            assert answers == [await refs[0].ask(Note("test", number)) for number in range(4) for _ in refs]
            assert type(answers[0]) is type(expected)
            assert near._last_number < 100
            for ref in refs:
                ref.close()
            hold.close()
            nursery.cancel_scope.cancel()


class CountedSocket(socket.socket):
    """A socket that counts its system calls to send."""

    num_sends = 0

    def send(self, data: bytes, flags: int = 0, /) -> int:  # type: ignore[override]  # a link sends bytes
        self.num_sends += 1
        return super().send(data, flags)


async def test_answers_to_questions_that_came_together_leave_together() -> None:
    """One system call instead of one an answer, each of which wakes the other process."""
    clerk = Clerk()
    near_socket, plain = socket.socketpair()
    far_socket = CountedSocket(fileno=plain.detach())
    near, far = Link(near_socket, MESSAGES, "far"), Link(far_socket, MESSAGES, "near")
    with trio.fail_after(HANGS_S):
        async with trio.open_nursery() as nursery:
            hold = clerk.ref("hold")
            await nursery.start(clerk.live)
            far.export(clerk)
            nursery.start_soon(near.run)
            nursery.start_soon(far.run)
            ref = await near.open("clerk", "test")
            before = far_socket.num_sends
            replies = [ref.request(Note("test", number)) for number in range(50)]
            assert [await reply.wait() for reply in replies] == list(range(50))
            assert far_socket.num_sends - before == 1
            ref.close()
            hold.close()
            near.end("the test is over")
