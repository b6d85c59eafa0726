"""Edge cases of law 7 of `docs/kernel.md` (crashes), and cancelled timers."""

from typing import Any

import pytest
import trio
import trio.testing

from sundog.actors.kernel.actor import ActorDied, Ref
from sundog.actors.kernel.clock import Event, now_s, sleep_until
from sundog.sim.clock import run_virtual
from tests.actors.clerk import Clerk, Note, leaves
from tests.actors.places import Place
from tests.actors.test_kernel_laws import failing, in_a_cell
from tests.timers import call_at


@pytest.mark.looks_inside
@pytest.mark.parametrize("goes_on", [True, False])
async def test_7_a_crash_while_a_handler_waits_keeps_its_cause(place: Place, goes_on: bool) -> None:
    """Whether the handler would have gone on at the same instant or never."""
    below = Clerk("below")
    above = Clerk("above")
    with pytest.raises(ExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            cell = await nursery.start(in_a_cell)
            above.below = await place.start(cell, below, "above")
            ref = await place.start(nursery, above)
            ref.tell(Note("test", 1, "hold and expect"))
            await place.settle()
            below.later[0].fail(ActorDied("the answer is lost"))
            if goes_on or place.tick_s < 1.0:
                above.may_go_on.set()
            else:
                call_at(now_s() + 1.0, Event.TIMEOUT, "", above.may_go_on.set)
            await trio.sleep_forever()
    (died,) = leaves(caught.value)
    assert isinstance(died, ActorDied) and str(died) == "the answer is lost"


@pytest.mark.looks_inside
@pytest.mark.parametrize("sent_by", ["tell", "ask", "timer"])
async def test_7_a_handler_that_raises_no_exception_but_a_base_exception_crashes_too(
    place: Place, sent_by: str
) -> None:
    """The actor's own task raises it, not the sender's; the actor is closed, and who asked is told."""
    clerk = Clerk("the-culprit")
    note = Note("test", 1, "leave")
    went_on = False
    with pytest.raises(BaseExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            ref = await place.start(nursery, clerk)
            with trio.CancelScope(shield=True):
                if sent_by == "tell":
                    ref.tell(note)
                elif sent_by == "timer":
                    clerk.schedule(now_s(), Event.TIMEOUT, note)
                else:
                    with pytest.raises(ActorDied, match="the-culprit crashed"):
                        await ref.ask(note)
            went_on = True
            await trio.sleep_forever()
    (left,) = leaves(caught.value)
    assert isinstance(left, SystemExit) and went_on and clerk.mailbox.is_closed
    assert left.__notes__[0].startswith("in actor the-culprit, handling Note(sender='test', number=1")


@pytest.mark.parametrize("capacity", [None, 1], ids=["for an answer", "for room"])
def test_7_tasks_that_a_crash_wakes_go_on_in_the_order_in_which_they_wait(capacity: int | None) -> None:
    """On the virtual clock, in every run: Trio alone shuffles those that are woken together."""

    async def main() -> list[int]:
        order: list[int] = []
        clerk = Clerk("the-culprit", capacity=capacity)

        async def ask(number: int, ref: Ref[Any]) -> None:
            with trio.CancelScope(shield=True), pytest.raises(ActorDied):
                await ref.ask(Note("test", number, "later"))
            order.append(number)
            await trio.lowlevel.checkpoint()
            order.append(number)

        async def crash() -> None:
            with pytest.raises(ZeroDivisionError):
                await clerk.live()

        async with trio.open_nursery() as nursery:
            ref = clerk.ref("test")
            nursery.start_soon(crash)
            await sleep_until(1.0)
            if capacity is not None:
                ref.tell(Note("test", -2, "hold"))
                ref.tell(Note("test", -1, "crash"))
            for number in range(4):
                nursery.start_soon(ask, number, ref)
                await sleep_until(2.0 + number)
            if capacity is None:
                ref.tell(Note("test", -1, "crash"))
            else:
                clerk.may_go_on.set()
        return order

    assert [run_virtual(main) for _ in range(8)] == [[0, 0, 1, 1, 2, 2, 3, 3]] * 8


@pytest.mark.wall_clock
async def test_a_timer_that_is_stopped_leaves_no_task_behind_on_the_wall_clock() -> None:
    """Whether it is stopped at once or while its task sleeps."""
    num_tasks = trio.lowlevel.current_statistics().tasks_living
    timers = [call_at(now_s() + 3600.0, Event.TIMEOUT, "", failing("it was stopped")) for _ in range(4)]
    timers[0].stop()
    await trio.testing.wait_all_tasks_blocked()
    assert trio.lowlevel.current_statistics().tasks_living == num_tasks + 3
    for timer in timers:
        timer.stop()
    await trio.testing.wait_all_tasks_blocked()
    assert trio.lowlevel.current_statistics().tasks_living == num_tasks
