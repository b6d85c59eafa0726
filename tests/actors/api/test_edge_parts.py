"""The parts of the edge that stand alone: timers of many connections, and what a request is told."""

import weakref
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
import trio
import trio.testing

from actors.api.edge.admission import AT_A_TIME as ADMITTED_AT_A_TIME
from actors.api.edge.admission import Admission
from actors.api.edge.countdown import Countdown
from actors.api.edge.direct import AT_A_TIME, Body, WritePass
from actors.api.edge.inbox import Inbox

BODY = {"type": "http.request", "body": b"x", "more_body": True}
LAST = {"type": "http.request", "body": b"", "more_body": False}
GONE = {"type": "http.disconnect"}


async def test_a_countdown_rings_once_for_each_key_and_not_for_those_that_stop() -> None:
    """At the instant that was last asked for; those that start together ring together."""
    rung: list[tuple[str, float]] = []
    countdown: Countdown[str] = Countdown(10.0, lambda key: rung.append((key, trio.current_time() - begin_s)))
    begin_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(countdown.run)
        for key in ("kept", "stopped", "again"):
            countdown.start(key)
        await trio.sleep(4)
        countdown.start("again")
        countdown.stop("stopped")
        countdown.stop("never")
        assert "again" in countdown and "stopped" not in countdown
        await trio.sleep(60)
        countdown.start("late")
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert rung == [("kept", 10.0), ("again", 14.0), ("late", 74.0)]


async def test_a_countdown_may_be_started_by_what_it_rings() -> None:
    """A check that goes on as long as there is something to check."""
    times_s: list[float] = []

    def ring(key: str) -> None:
        times_s.append(trio.current_time() - begin_s)
        if len(times_s) < 3:
            countdown.start(key)

    countdown: Countdown[str] = Countdown(5.0, ring)
    begin_s = trio.current_time()
    countdown.start("each")
    with trio.move_on_after(100):
        await countdown.run()
    assert times_s == [5.0, 10.0, 15.0]


async def test_all_that_counts_may_be_rung_at_once() -> None:
    """When a server stops."""
    rung: list[str] = []
    countdown: Countdown[str] = Countdown(5.0, rung.append)
    countdown.start("a")
    countdown.start("b")
    countdown.ring_all()
    with trio.move_on_after(100):
        await countdown.run()
    assert rung == ["a", "b"]


async def test_an_app_that_is_attached_is_told_at_once_and_in_order() -> None:
    """Of what waits already, too, and the connection never waits for it."""
    inbox, taken = Inbox(1), []
    await inbox.put(BODY)  # type: ignore[arg-type]  # a dictionary of Hypercorn's
    async with trio.open_nursery() as nursery:
        nursery.start_soon(inbox.put, LAST)
        await trio.sleep(1)
        inbox.attach(taken.append)
        assert taken == [BODY, LAST]
    await inbox.put(GONE)  # type: ignore[arg-type]  # a dictionary of Hypercorn's
    assert taken == [BODY, LAST, GONE]


async def test_an_app_that_has_left_is_not_kept() -> None:
    """What it was told with goes with it, though the connection lives; more events are dropped."""

    class App:
        def take(self, event: object) -> None:
            raise AssertionError(event)

    inbox, app = Inbox(1), App()
    inbox.attach(app.take)
    gone = weakref.ref(app)
    inbox.leave()
    del app
    assert gone() is None
    for _ in range(5):
        await inbox.put(GONE)  # type: ignore[arg-type]  # a dictionary of Hypercorn's


async def test_a_connection_waits_for_an_app_that_is_slow_to_receive() -> None:
    """So that no client fills the memory of one that is not attached."""
    inbox, num_put = Inbox(2), 0

    async def put_all() -> None:
        nonlocal num_put
        for _ in range(5):
            await inbox.put(BODY)  # type: ignore[arg-type]  # a dictionary of Hypercorn's
            num_put += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(put_all)
        await trio.sleep(1)
        assert num_put == 2
        for _ in range(5):
            assert await inbox.receive() == BODY
            await trio.sleep(1)
    with pytest.raises(trio.TooSlowError), trio.fail_after(1):
        await inbox.receive()
    assert num_put == 5 and Inbox.behind(inbox.receive) is inbox and Inbox.behind(put_all) is None


class _Feed:
    """One piece at a time."""

    is_over = False

    def __init__(self, name: bytes) -> None:
        self._name = name

    def watch(self, on_unread: Callable[[], None]) -> None: ...

    def take(self) -> bytes:
        return self._name


class _Kept:
    """A connection that keeps what is written, in the order of all."""

    def __init__(self, written: list[bytes]) -> None:
        self._written = written

    def write_now(self, data: bytes) -> int:
        self._written.append(data[3:-2])
        return len(data)

    async def write(self, data: bytes) -> None: ...

    def hold(self, data: bytes) -> None: ...

    def abort(self) -> None: ...


@pytest.mark.wall_clock
async def test_first_tokens_are_written_before_others() -> None:
    """However many streams have something new: they have waited for longest, and nobody is left out."""
    writes, written = WritePass(), list[bytes]()
    old = [Body(_Kept(written), writes, _Feed(b"old")) for _ in range(2 * AT_A_TIME)]
    for body in old:
        body.write()
    written.clear()
    new = [Body(_Kept(written), writes, _Feed(b"new")) for _ in range(AT_A_TIME + 1)]
    for body in (*old, *new):
        writes.add(body)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writes.run)
        with trio.fail_after(5):
            while len(written) < len(old) + len(new):
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert written == [b"new"] * len(new) + [b"old"] * len(old)


@pytest.mark.wall_clock
async def test_requests_that_come_at_once_begin_by_and_by() -> None:
    """In their order, and others have their turn between."""
    admission, begun, turns = Admission(), list[int](), list[int]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(admission.run)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(9):
            admission.enter(partial(begun.append, number))
        while len(begun) < 9:
            turns.append(len(begun))
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert begun == list(range(9))
    assert turns[0] == ADMITTED_AT_A_TIME
    assert all(later - sooner <= 2 * ADMITTED_AT_A_TIME for sooner, later in pairwise(turns))
