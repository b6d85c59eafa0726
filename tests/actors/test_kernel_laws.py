"""The laws of `docs/kernel.md`, by number, in every place where an actor may run."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import trio

from sundog.actors.kernel.actor import Actor, ActorDied, MailboxFull, Ref, Reply
from sundog.actors.kernel.clock import Event, now_s
from sundog.sim.clock import run_virtual
from tests.actors.clerk import Clerk, Note, leaves
from tests.actors.places import Place
from tests.patience import HANGS_S
from tests.timers import call_at

# --- 1: one message at a time, in order ------------------------------------------------------------


async def test_1_messages_of_one_sender_are_handled_in_order_whatever_the_handler_does(place: Place) -> None:
    """At once or after a wait; each sender's own order is kept among the others'."""
    clerk = Clerk()
    async with trio.open_nursery() as nursery:
        first = await place.start(nursery, clerk, "first")
        second = await place.address(clerk, "second")
        first.tell(Note("first", 0, "hold"))
        await place.settle()
        for number in range(1, 50):
            first.tell(Note("first", number))
            second.tell(Note("second", number))
        clerk.may_go_on.set()
        assert await first.ask(Note("first", 50)) == 50
        first.close()
        second.close()
    for sender in ("first", "second"):
        numbers = [number for name, number in clerk.numbers if name == sender]
        assert numbers == sorted(numbers) and len(numbers) >= 49


async def test_1_a_handler_never_runs_inside_another_of_the_same_actor(place: Place) -> None:
    """Not even when it writes to itself; what it wrote is handled when it has ended."""
    clerk = Clerk()
    async with trio.open_nursery() as nursery:
        ref = await place.start(nursery, clerk)
        clerk.itself = clerk.ref("itself", counted=False)
        assert await ref.ask(Note("test", 0, "tell yourself")) == 0
        await place.settle()
        assert clerk.numbers == [("test", 0), ("itself", 0), ("itself", 1), ("itself", 2)]
        ref.close()
    assert clerk.most_deep == 1


# --- 2: a reply is set once and has one reader -----------------------------------------------------


@pytest.mark.looks_inside
async def test_2_a_second_answer_is_a_bug_and_raises(place: Place) -> None:
    """The first stays."""
    reply: Reply[int] = Reply()
    reply.set(1)
    with pytest.raises(RuntimeError, match="a reply is set once: 2 comes after 1"):
        reply.set(2)
    with pytest.raises(RuntimeError, match="set once"):
        reply.fail(ActorDied("late"))
    assert await reply.wait() == 1


@pytest.mark.looks_inside
async def test_2_a_second_waiter_raises_instead_of_hanging(place: Place) -> None:
    """The first gets the answer; whoever was cancelled makes room for another."""
    reply: Reply[int] = Reply()
    got: list[int] = []

    async def wait() -> None:
        got.append(await reply.wait())

    async with trio.open_nursery() as nursery:
        with trio.move_on_after(place.tick_s):
            await reply.wait()
        nursery.start_soon(wait, name="the-reader")
        await trio.sleep(place.tick_s)
        with (
            trio.fail_after(HANGS_S),
            pytest.raises(RuntimeError, match="one reader, and the task the-reader"),
        ):
            await reply.wait()
        with pytest.raises(RuntimeError, match="one reader"):
            reply.then(lambda value, error: None)
        reply.set(7)
    assert got == [7]


@pytest.mark.looks_inside
async def test_2_a_second_callback_raises_instead_of_replacing_the_first(place: Place) -> None:
    """And so does waiting for an answer that a callback will have."""
    reply: Reply[int] = Reply()
    got: list[int | None] = []
    reply.then(lambda value, error: got.append(value))
    with pytest.raises(RuntimeError, match="one reader"):
        reply.then(lambda value, error: got.append(-1))
    with trio.fail_after(HANGS_S), pytest.raises(RuntimeError, match="one reader"):
        await reply.wait()
    reply.set(3)
    assert got == [3]


# --- 3: whoever waits is told ----------------------------------------------------------------------


@pytest.mark.parametrize("ends_by", ["crash", "cancellation", "hang-up"])
async def test_3_a_reply_is_settled_when_its_actor_ends(place: Place, ends_by: str) -> None:
    """Queued, or left to somebody who never answers."""
    clerk = Clerk()
    async with trio.open_nursery() as outer:
        cell = await outer.start(in_a_cell)
        ref = await place.start(cell, clerk)
        left = ref.request(Note("test", 0, "later"))
        replies = [left]
        if ends_by == "crash":
            ref.tell(Note("test", 1, "crash"))
        elif ends_by == "cancellation":
            ref.tell(Note("test", 1, "hold"))
            replies.append(ref.request(Note("test", 2)))
            await place.settle()
            cell.cancel_scope.cancel()
        else:
            ref.close()
        for reply in replies:
            with trio.fail_after(HANGS_S), pytest.raises(ActorDied, match="clerk"):
                await reply.wait()
    clerk.later[0].set(5)
    with pytest.raises(ActorDied):
        left.result()


class Porter(Actor[Any]):
    """Passes each note on to a clerk, and crashes at a "crash"."""

    def __init__(self, clerk: Ref[Any]) -> None:
        super().__init__("porter")
        self._clerk = clerk

    def handle(self, message: Note) -> Any:
        if message.does == "crash":
            raise ZeroDivisionError("a bug")
        self.pass_on(self._clerk, message)

    async def closed(self) -> None:
        self._clerk.close()


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("does", ["later", "hold"])
async def test_3_an_answer_passed_on_comes_from_the_other_actor_or_ends_with_this_one(
    crashes: bool, does: str
) -> None:
    """An answer that comes after the crash is dropped, and harms nobody."""
    clerk = Clerk()
    async with trio.open_nursery() as outer:
        own = clerk.ref("test")
        await outer.start(clerk.live)
        cell = await outer.start(in_a_cell)
        porter = Porter(clerk.ref("porter"))
        ref = porter.ref("test")
        await cell.start(porter.live)
        ref.tell(Note("test", 6))
        assert await ref.ask(Note("test", 7)) == 7
        late = ref.request(Note("test", 8, does))
        if crashes:
            ref.tell(Note("test", 9, "crash"))
            with trio.fail_after(HANGS_S), pytest.raises(ActorDied, match="porter"):
                await late.wait()
        if does == "later":
            clerk.later[0].set(8)
        clerk.may_go_on.set()
        if not crashes:
            assert await late.wait() == 8
        assert await own.ask(Note("test", 10)) == 10, "the clerk goes on"
        outer.cancel_scope.cancel()  # a crashed porter does not hang up


async def in_a_cell(*, task_status: trio.TaskStatus[trio.Nursery]) -> None:
    """A nursery whose crash is nobody else's."""
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 0.001)
            task_status.started(nursery)
    except* ZeroDivisionError:
        pass


@pytest.mark.looks_inside
async def test_3_thousands_of_answers_left_to_others_are_not_kept_when_they_are_given(place: Place) -> None:
    """An actor remembers whom it still owes an answer, and few more."""
    clerk = Clerk()
    async with trio.open_nursery() as nursery:
        ref = await place.start(nursery, clerk)
        for number in range(1000):
            reply = ref.request(Note("test", number, "later"))
            while not clerk.later:
                await trio.lowlevel.checkpoint()
            clerk.later.pop().set(number)
            assert await reply.wait() == number
        assert len(clerk._left) < 100
        ref.close()


# --- 4: waiting is a checkpoint --------------------------------------------------------------------


async def test_4_asks_that_are_answered_at_once_still_meet_a_deadline(place: Place) -> None:
    """Whoever does nothing but ask can be cancelled."""
    async with trio.open_nursery() as nursery:
        ref = await place.start(nursery, Clerk())
        nursery.start_soon(go_by, place.tick_s)
        with trio.move_on_after(place.tick_s) as scope:
            for number in range(10**6):
                await ref.ask(Note("test", number))
                if number % 1000 == 0:
                    await pass_time(place)
        assert scope.cancelled_caught
        ref.close()


async def go_by(seconds: float) -> None:
    await trio.sleep(seconds)


async def pass_time(place: Place) -> None:
    """A virtual clock stands still for whoever only asks; a wall clock goes on by itself."""
    if place.tick_s == 1.0:
        await trio.sleep(0.1)


async def test_4_an_ask_lets_others_run_and_so_does_waiting_for_an_answer_that_is_here(place: Place) -> None:
    """Every single time."""
    num_turns = 0

    async def other() -> None:
        nonlocal num_turns
        while True:
            num_turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        ref = await place.start(nursery, Clerk())
        reply = ref.request(Note("test", 0))
        nursery.start_soon(other)
        for _ in range(20):
            await ref.ask(Note("test", 1))
        assert num_turns >= 19
        for _ in range(20):
            await reply.wait()
        assert num_turns >= 39
        nursery.cancel_scope.cancel()


# --- 5: what a cancelled ask leaves behind ---------------------------------------------------------


async def test_5_an_ask_that_is_cancelled_before_it_begins_leaves_no_message(place: Place) -> None:
    """As anything that Trio cancels."""
    clerk = Clerk()
    async with trio.open_nursery() as nursery:
        ref = await place.start(nursery, clerk)
        with trio.CancelScope() as scope:
            scope.cancel()
            await ref.ask(Note("test", 1))
        assert scope.cancelled_caught and clerk.handled == []
        ref.close()


async def test_5_an_ask_that_is_cancelled_while_it_waits_leaves_its_message(place: Place) -> None:
    """Which is handled in its turn; the answer is dropped, and the next is its own."""
    clerk = Clerk()
    async with trio.open_nursery() as nursery:
        ref = await place.start(nursery, clerk)
        ref.tell(Note("test", 0, "hold"))
        with trio.move_on_after(place.tick_s) as scope:
            await ref.ask(Note("test", 1))
        assert scope.cancelled_caught
        clerk.may_go_on.set()
        assert await ref.ask(Note("test", 2)) == 2
        assert clerk.numbers == [("test", 0), ("test", 1), ("test", 2)]
        ref.close()


# --- 6: nothing is handled after the end -----------------------------------------------------------


@pytest.mark.looks_inside
async def test_6_nothing_is_handled_once_run_has_ended(place: Place) -> None:
    """Neither while `closed` waits nor later: callers are told, listeners' news is dropped."""
    closing, may_close = trio.Event(), trio.Event()

    class Slow(Clerk):
        async def closed(self) -> None:
            closing.set()
            await may_close.wait()

    clerk = Slow()
    async with trio.open_nursery() as nursery:
        ref = await place.start(nursery, clerk)
        listener = clerk.ref("upward", counted=False)
        ref.tell(Note("test", 0, "schedule"))
        ref.close()
        await closing.wait()
        listener.tell(Note("listener", 1, "crash"))
        for send in (ref.tell, ref.request):
            with pytest.raises(ActorDied, match="clerk has ended and cannot take"):
                send(Note("test", 2))
        await trio.sleep(place.tick_s)
        may_close.set()
    assert clerk.numbers == [("test", 0)]


async def test_6_after_a_crash_nothing_more_is_handled(place: Place) -> None:
    """Callers learn of it before the actor's task does."""
    clerk = Clerk()
    with pytest.raises(ExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            ref = await place.start(nursery, clerk)
            listener = await place.address(clerk, "upward", counted=False)
            listener.tell(Note("listener", 0, "crash"))
            listener.tell(Note("listener", 1))
            with trio.CancelScope(shield=True):
                await place.settle()
            with pytest.raises(ActorDied):
                ref.tell(Note("test", 2))
    assert [type(leaf) for leaf in leaves(caught.value)] == [ZeroDivisionError]
    assert clerk.numbers == [("listener", 0)]


# --- 7: crashes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent_by", ["tell", "ask", "timer"])
async def test_7_a_crash_is_raised_in_the_actors_own_task_and_says_where(place: Place, sent_by: str) -> None:
    """With actor, message, request and what the mailbox has seen; the sender goes on."""
    clerk = Clerk("the-culprit")
    note = Note("test", 1, "crash", request_id="r17")
    went_on = False
    with pytest.raises(ExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            ref = await place.start(nursery, clerk)
            await ref.ask(Note("test", 0))
            if sent_by == "tell":
                ref.tell(note)
            elif sent_by == "timer":
                clerk.schedule(now_s(), Event.TIMEOUT, note)
            else:
                with trio.CancelScope(shield=True), pytest.raises(ActorDied, match="the-culprit crashed"):
                    await ref.ask(note)
            went_on = True
            await trio.sleep_forever()
    (bug,) = leaves(caught.value)
    assert isinstance(bug, ZeroDivisionError) and went_on
    where, mailbox = bug.__notes__[:2]
    assert where.startswith("in actor the-culprit, handling Note(sender='test', number=1")
    assert where.endswith("of request r17")
    assert mailbox == "mailbox of the-culprit: 2 taken, 0 waiting, at most 0 at a time"


@pytest.mark.looks_inside
async def test_7_an_answer_that_is_expected_and_will_not_come_is_a_crash(place: Place) -> None:
    """Even if it fails while the actor handles the very message that asked for it."""
    below = Clerk("below")
    above = Clerk("above")
    with pytest.raises(ExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            cell = await nursery.start(in_a_cell)
            above.below = await place.start(cell, below, "above")
            ref = await place.start(nursery, above)
            ref.tell(Note("test", 1, "expect"))
            await place.settle()
            above.below.tell(Note("above", 2, "crash"))
            await trio.sleep_forever()
    (died,) = leaves(caught.value)
    assert isinstance(died, ActorDied) and "in actor above, between messages" in died.__notes__


# --- 8: nothing raises into Trio -------------------------------------------------------------------


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.looks_inside
async def test_8_a_tap_that_fails_is_dropped_with_one_warning(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Whichever actor it was tapping, and by whatever wire: told, asked, expected, scheduled."""
    num_calls = 0

    def tap(time_s: float, sender: str, receiver: str, message: object) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 2:
            raise OSError("the disk is full")

    clerk = Clerk(tap=tap)
    async with trio.open_nursery() as nursery:
        ref = await place.start(nursery, clerk)
        for number in range(5):
            ref.tell(Note("test", number))
        assert await ref.ask(Note("test", 5)) == 5
        ref.close()
    assert len(clerk.handled) == 6 and num_calls == 2
    (warning,) = warnings_of(caplog)
    assert "failed and is switched off" in warning and "disk is full" in caplog.text


async def test_8_a_failing_callback_of_a_reply_harms_nobody(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither who set it nor who else waits."""

    def callback(value: object, error: BaseException | None) -> None:
        raise ZeroDivisionError("a bug in the callback")

    clerk = Clerk()
    async with trio.open_nursery() as nursery:
        ref = await place.start(nursery, clerk)
        ref.request(Note("test", 0)).then(callback)
        assert await ref.ask(Note("test", 1)) == 1
        ref.close()
    assert len(warnings_of(caplog)) == 1 and "a bug in the callback" in caplog.text


@pytest.mark.wall_clock
async def test_8_on_the_wall_clock_a_call_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """It has no task to crash in, and Trio's own goes on."""
    rang = trio.Event()
    for delay_s in (0.0, 0.005):
        call_at(now_s() + delay_s, Event.TIMEOUT, "", failing("a bug in the call"))
    call_at(now_s() + 0.01, Event.TIMEOUT, "", rang.set)
    with trio.fail_after(HANGS_S):
        await rang.wait()
    assert len(warnings_of(caplog)) == 2 and "a bug in the call" in caplog.text


def test_8_on_a_virtual_clock_a_call_that_fails_ends_the_run() -> None:
    """A simulation that lost a call is wrong: the error is raised with the time of the call."""

    async def main() -> None:
        call_at(1.5, Event.TIMEOUT, "", failing("a bug in the call"))
        await trio.sleep(10)

    with pytest.raises(ExceptionGroup) as caught:
        run_virtual(main)
    (bug,) = leaves(caught.value)
    assert isinstance(bug, ZeroDivisionError) and bug.__notes__ == ["in a call due at 1.500000 s"]


def failing(words: str) -> Callable[[], None]:
    def fail() -> None:
        raise ZeroDivisionError(words)

    return fail


# --- 9: back-pressure ------------------------------------------------------------------------------


async def test_9_a_bounded_mailbox_refuses_a_tell_and_makes_asks_wait_in_order(place: Place) -> None:
    """A tell that does not fit is a bug; asks are served as they came."""
    clerk = Clerk(capacity=2)
    answers: list[int] = []

    async def ask(number: int) -> None:
        answers.append(await ref.ask(Note("test", number)))

    async with trio.open_nursery() as nursery:
        ref = await place.start(nursery, clerk)
        ref.tell(Note("test", 0, "hold"))
        await place.settle()
        ref.tell(Note("test", 1))
        ref.tell(Note("test", 2))
        with pytest.raises(MailboxFull, match="clerk has 2 unread messages"):
            ref.tell(Note("test", 3))
        for number in range(4, 10):
            nursery.start_soon(ask, number)
            await trio.sleep(place.tick_s / 10)
        clerk.may_go_on.set()
        while len(answers) < 6:
            await trio.sleep(place.tick_s)
        ref.close()
    assert [number for _, number in clerk.numbers] == [0, 1, 2, *range(4, 10)]
    assert sorted(answers) == list(range(4, 10))


# --- 10: ends --------------------------------------------------------------------------------------


async def test_10_an_actor_ends_when_all_who_count_have_hung_up(place: Place) -> None:
    """Not before, and whatever listeners there are."""
    clerk = Clerk()
    async with trio.open_nursery() as nursery:
        first = await place.start(nursery, clerk, "first")
        second = await place.address(clerk, "second")
        upward = await place.address(clerk, "upward", counted=False)
        first.close()
        await trio.sleep(place.tick_s)
        second.tell(Note("second", 1))
        upward.tell(Note("upward", 1))
        second.close()
    assert clerk.numbers == [("second", 1), ("upward", 1)]


# --- 11: statistics --------------------------------------------------------------------------------


@pytest.mark.looks_inside
async def test_11_a_mailbox_says_how_much_it_took_how_much_waits_and_when_it_took_the_last(
    place: Place,
) -> None:
    """Readable at any time by whoever holds the actor."""
    clerk = Clerk()
    assert clerk.statistics() == (0, 0, 0, None)
    async with trio.open_nursery() as nursery:
        ref = await place.start(nursery, clerk)
        ref.tell(Note("test", 0))
        ref.tell(Note("test", 1, "hold"))
        await place.settle()
        began_s = now_s()
        await trio.sleep(place.tick_s)
        for number in range(2, 7):
            ref.tell(Note("test", number))
        await place.settle()
        seen = clerk.statistics()
        assert (seen.num_handled, seen.num_waiting, seen.most_waiting) == (2, 5, 5)
        assert seen.last_s is not None and seen.last_s <= began_s
        answer = ref.request(Note("test", 7))
        await place.settle()
        clerk.may_go_on.set()
        assert await answer.wait() == 7
        seen = clerk.statistics()
        assert (seen.num_handled, seen.num_waiting, seen.most_waiting) == (8, 0, 6)
        assert seen.last_s is not None and seen.last_s >= began_s + place.tick_s
        ref.close()
