"""The parts of the edge that stand alone: timers of many connections, and what a request is told."""

import weakref

import pytest
import trio

from actors.api.edge.countdown import Countdown
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
