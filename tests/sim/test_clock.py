"""Virtual time: the order of events, and that it is the same in every run."""

import math
import random
import threading
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio

from sundog.actors.kernel.clock import Agenda, CallTimer, Event, Timer, now_s, run_blocking, sleep_until
from sundog.sim.clock import Deadlock, VirtualClock, run_virtual
from tests.timers import call_at

Log = list[tuple[float, str]]


def run_all(*tasks: Callable[[Log], Awaitable[None]]) -> Log:
    """What the tasks logged, run together on a virtual clock."""
    log: Log = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for task in tasks:
                nursery.start_soon(task, log)

    run_virtual(main)
    return log


def wakes(time_s: float, event: Event, key: str, name: str) -> Callable[[Log], Awaitable[None]]:
    async def task(log: Log) -> None:
        await sleep_until(time_s, event, key)
        log.append((now_s(), name))

    return task


def test_events_come_in_the_order_of_time_event_and_key() -> None:
    """At each instant arrivals, ends of steps, begins of steps, timeouts; then by key."""
    wanted = [
        (1.0, Event.TIMEOUT, ""),
        (2.0, Event.ARRIVAL, "a"),
        (2.0, Event.ARRIVAL, "b"),
        (2.0, Event.STEP_END, ""),
        (2.0, Event.STEP_BEGIN, "scheduler-0"),
        (2.0, Event.STEP_BEGIN, "scheduler-1"),
        (2.0, Event.TIMEOUT, ""),
        (3.0, Event.ARRIVAL, ""),
    ]
    for _ in range(30):
        log = run_all(*(wakes(*event, repr(event)) for event in reversed(wanted)))
        assert log == [(event[0], repr(event)) for event in wanted]


async def test_equal_events_come_in_the_order_in_which_they_were_awaited() -> None:
    """The last tie-breaker is the sequence."""
    log: list[int] = []

    async def wake(number: int) -> None:
        await sleep_until(1.0)
        log.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(wake, number)
            await sleep_until(number / 100)
    assert log == list(range(20))


async def test_each_event_comes_to_rest_before_the_next_of_its_instant() -> None:
    """What the first causes, through any number of tasks, has happened when the second begins."""
    log: list[str] = []
    send, receive = trio.open_memory_channel[str](0)

    async def relay() -> None:
        async for message in receive:
            for _ in range(5):
                await trio.lowlevel.checkpoint()
            log.append(message)

    async def first() -> None:
        await sleep_until(1.0, Event.ARRIVAL)
        async with send:
            await send.send("caused")

    async def second() -> None:
        await sleep_until(1.0, Event.STEP_BEGIN)
        log.append("step")

    async with trio.open_nursery() as nursery:
        for task in (second, first, relay):
            nursery.start_soon(task)
    assert log == ["caused", "step"]


async def test_the_past_is_now() -> None:
    """Waiting for it takes no time, but lets earlier events of this instant go first."""
    await sleep_until(5.0)
    await sleep_until(1.0)
    assert now_s() == 5.0


async def test_time_never_goes_back_and_starts_at_zero() -> None:
    """Whatever is waited for in whatever order."""
    assert now_s() == 0.0
    seen = []

    async def wake(time_s: float) -> None:
        await sleep_until(time_s)
        seen.append(now_s())
        await sleep_until(time_s / 2)
        seen.append(now_s())

    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(wake, (number * 37 % 50) / 10)
    assert seen == sorted(seen)


async def test_trios_own_sleeps_and_deadlines_are_in_virtual_time() -> None:
    """An hour passes at once."""
    await trio.sleep(3600)
    assert now_s() == 3600
    with trio.move_on_after(1.5) as scope:
        await trio.sleep_forever()
    assert scope.cancelled_caught and now_s() == 3601.5
    with pytest.raises(trio.TooSlowError):
        with trio.fail_at(3700):
            await sleep_until(4000)
    assert now_s() == 3700


async def test_what_completes_just_in_time_has_completed() -> None:
    """A timeout of ours comes after all else of its instant."""
    log: list[str] = []

    async def work() -> None:
        for event in (Event.ARRIVAL, Event.STEP_END, Event.STEP_BEGIN):
            await sleep_until(1.0, event)
        log.append("done")

    async def time_out() -> None:
        await sleep_until(1.0, Event.TIMEOUT)
        log.append("timeout")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(time_out)
        nursery.start_soon(work)
    assert log == ["done", "timeout"]


async def test_a_deadline_of_trio_expires_with_the_first_event_of_its_instant() -> None:
    """It still completes; later ones are cut off. Who needs an order waits with `sleep_until`."""
    log = []
    with trio.move_on_at(1.0) as scope:
        for event in (Event.STEP_END, Event.TIMEOUT):
            await sleep_until(1.0, event)
            log.append(event)
    assert log == [Event.STEP_END]
    assert scope.cancelled_caught and now_s() == 1.0


async def test_trios_deadlines_of_one_instant_expire_together() -> None:
    """They have no order among themselves: whatever needs one waits with `sleep_until`."""
    log: list[str] = []

    async def wait(name: str) -> None:
        await trio.sleep_until(1.0)
        log.append(name)
        await sleep_until(1.0, Event.ARRIVAL)
        log.append("after")

    async with trio.open_nursery() as nursery:
        for name in "abc":
            nursery.start_soon(wait, name)
    assert sorted(log[:3]) == ["a", "b", "c"] and log[3:] == ["after"] * 3


async def test_a_cancelled_wait_is_not_waited_for() -> None:
    """Time does not move to it, nobody is woken by it, and it leaves the heap when it surfaces."""
    with trio.move_on_at(1.0):
        await sleep_until(100.0)
    assert now_s() == 1.0
    await sleep_until(2.0)
    assert now_s() == 2.0
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, VirtualClock)
    with trio.CancelScope() as scope:
        scope.cancel()
        await sleep_until(50.0)
    await sleep_until(200.0)
    assert now_s() == 200.0 and clock.agenda.due(math.inf) is None


@pytest.mark.parametrize("seed", range(20))
def test_timers_come_in_one_order_wherever_they_are_kept(seed: int) -> None:
    """By time, event, key and turn, without those that were stopped, and none behind the deadline."""
    rng, agenda = random.Random(seed), Agenda()
    pending: list[tuple[float, Event, str, int, Timer]] = []
    for turn in range(300):
        for _ in range(rng.randrange(3)):
            timer, event, key = CallTimer(str), rng.choice(list(Event)), rng.choice("ab")
            time_s = agenda.time_s + rng.choice((-1.0, 0.0, 0.0, 0.5, 1.0, 1.5, 7.0))
            agenda.enter(time_s, event, key, timer)
            pending.append((max(time_s, agenda.time_s), event, key, agenda.num_entered, timer))
        if pending and rng.random() < 0.3:
            rng.choice(pending)[-1].stop()
        deadline_s = math.inf if turn % 2 else agenda.time_s + rng.choice((0.0, 1.0))
        pending = [entry for entry in pending if not entry[-1].is_stopped]
        expected = min(pending, default=None)
        if expected is not None and expected[0] > deadline_s:
            expected = None
        found = agenda.due(deadline_s)
        while found is not None and found.is_stopped:
            found = agenda.due(deadline_s)
        assert found is (None if expected is None else expected[-1]), turn
        if expected is not None:
            assert agenda.time_s == expected[0]
            pending.remove(expected)


def test_a_deadlock_names_who_waits_instead_of_hanging() -> None:
    """The task, and the function of ours that it stands in."""

    async def waits_for_nothing() -> None:
        await trio.Event().wait()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waits_for_nothing, name="the-orphan")
            await sleep_until(1.25)

    with pytest.raises(ExceptionGroup) as caught:
        run_virtual(main)
    assert caught.group_contains(
        Deadlock, match=r"at 1\.250000 s nothing can happen any more; waiting:.* the-orphan in .*waits_for_"
    )


def test_a_run_returns_what_its_program_returns() -> None:
    """And gives it its arguments."""

    async def add(a: int, b: int) -> int:
        await trio.sleep(a)
        return a + b

    assert run_virtual(add, 1, 2) == 3


def test_trio_asks_for_the_sleep_once_a_pass_and_only_when_nothing_is_runnable() -> None:
    """The public use of `trio.abc.Clock` on which all of virtual time rests."""
    calls: list[tuple[bool, float]] = []
    runnable = 0

    class Pinned(VirtualClock):
        def deadline_to_sleep_time(self, deadline: float) -> float:
            calls.append((runnable > 0, deadline))
            return super().deadline_to_sleep_time(deadline)

    async def spin(times: int) -> None:
        nonlocal runnable
        for _ in range(times):
            runnable += 1
            await trio.lowlevel.checkpoint()
            runnable -= 1

    async def main() -> None:
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, Pinned)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(spin, 50)
            nursery.start_soon(spin, 80)
        num_before = len(calls)
        await sleep_until(1.0)
        await sleep_until(2.0)
        assert len(calls) == num_before + 2
        with trio.CancelScope(deadline=7.0):
            await sleep_until(3.0)
        assert calls[-1] == (False, 7.0)

    trio.run(main, clock=Pinned())
    assert not any(was_runnable for was_runnable, _ in calls)


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_every_run_has_the_same_order_of_events_however_trio_shuffles() -> None:
    """Three hundred runs of thirty tasks that wait, meet and spawn."""

    async def worker(log: Log, key: str, depth: int) -> None:
        for number in range(3):
            await sleep_until(now_s() + (len(key) * 7 + number) % 3, Event.STEP_END, key)
            log.append((now_s(), f"{key} {number}"))
        if depth:
            async with trio.open_nursery() as nursery:
                for child in "xyz":
                    nursery.start_soon(worker, log, key + child, depth - 1)

    tasks = [partial(worker, key=key, depth=1) for key in "abcdefg"]
    first = run_all(*tasks)
    assert len(first) == 7 * 4 * 3
    for _ in range(300):
        assert run_all(*tasks) == first


async def test_blocking_work_is_done_in_place_on_a_virtual_clock() -> None:
    """In the very thread, in no time, whatever else could run."""
    assert await run_blocking(threading.get_ident) == threading.get_ident()
    assert await run_blocking(max, 1, 2) == 2


@pytest.mark.wall_clock
async def test_blocking_work_is_done_in_a_thread_on_the_wall_clock() -> None:
    """Where it does not hold up the others."""
    assert await run_blocking(threading.get_ident) != threading.get_ident()
    assert await run_blocking(max, 1, 2) == 2


@pytest.mark.wall_clock
async def test_on_the_wall_clock_waiting_for_the_past_takes_no_time() -> None:
    """The same call works where order within an instant means nothing."""
    await sleep_until(now_s() - 1, Event.STEP_BEGIN, "key")


async def test_time_stands_still_while_work_outside_is_under_way() -> None:
    """Held by `num_holds`: the next event waits until the thread has come back."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, VirtualClock)
    times: list[float] = []

    def work() -> None:
        for _ in range(20):
            times.append(trio.from_thread.run_sync(now_s))

    async def outside() -> None:
        clock.num_holds += 1
        await trio.to_thread.run_sync(work)
        clock.num_holds -= 1
        times.append(now_s())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(outside)
        await sleep_until(10.0)
        assert len(times) == 21
    assert set(times) == {0.0} and now_s() == 10.0


async def test_calls_and_waits_share_one_order() -> None:
    """By time, event, key and the order in which they were asked for."""
    log: list[str] = []

    async def wait(name: str, event: Event) -> None:
        await sleep_until(1.0, event, name)
        log.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, "b", Event.STEP_END)
        nursery.start_soon(wait, "d", Event.STEP_BEGIN)
        await sleep_until(0.5)
        call_at(1.0, Event.STEP_BEGIN, "c", lambda: log.append("c"))
        call_at(1.0, Event.ARRIVAL, "a", lambda: log.append("a"))
        call_at(0.75, Event.TIMEOUT, "", lambda: log.append("first"))
    assert log == ["first", "a", "b", "c", "d"]


async def test_what_a_call_sets_going_comes_to_rest_before_the_next() -> None:
    """A call may wake a task; the next event of the instant waits for all that follows."""
    log: list[str] = []
    woken = trio.Event()

    async def sleeper() -> None:
        await woken.wait()
        for _ in range(5):
            await trio.lowlevel.checkpoint()
        log.append("came to rest")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleeper)
        await sleep_until(0.5)
        call_at(1.0, Event.ARRIVAL, "a", woken.set)
        call_at(1.0, Event.ARRIVAL, "b", lambda: log.append("next"))
        await sleep_until(2.0)
    assert log == ["came to rest", "next"]


async def test_a_stopped_call_never_happens_and_time_does_not_move_to_it() -> None:
    """Like a wait that was cancelled."""
    log: list[float] = []
    call_at(5.0, Event.TIMEOUT, "", lambda: log.append(now_s())).stop()
    timer = call_at(1.0, Event.TIMEOUT, "", lambda: log.append(now_s()))
    await sleep_until(2.0)
    timer.stop()
    await trio.sleep(10.0)
    assert log == [1.0] and now_s() == 12.0


async def test_a_call_for_the_past_comes_now_but_never_at_once() -> None:
    """Whoever asks for it goes on first."""
    await sleep_until(3.0)
    log: list[float] = []
    call_at(1.0, Event.ARRIVAL, "", lambda: log.append(now_s()))
    assert log == []
    await sleep_until(3.0)
    assert log == [3.0]


def test_calls_without_end_leave_trio_its_turns() -> None:
    """A chain of calls that wakes nobody still lets a deadline of Trio's expire."""

    async def main() -> int:
        count = 0

        def again() -> None:
            nonlocal count
            count += 1
            call_at(now_s() + 0.001, Event.TIMEOUT, "", again)

        again()
        with trio.move_on_at(30.0):
            await trio.sleep_forever()
        return count

    assert run_virtual(main) == 30_000


def test_on_the_wall_clock_a_call_comes_at_its_time_unless_stopped() -> None:
    """And one for now comes soon, after whoever asked for it."""
    log: list[str] = []

    async def main() -> None:
        call_at(now_s() + 0.02, Event.TIMEOUT, "", lambda: log.append("later"))
        call_at(now_s() + 0.01, Event.TIMEOUT, "", lambda: log.append("stopped")).stop()
        call_at(now_s(), Event.TIMEOUT, "", lambda: log.append("now"))
        assert log == []
        await trio.sleep(0.05)

    trio.run(main)
    assert log == ["now", "later"]
