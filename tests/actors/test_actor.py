"""Unit tests of the actor kernel."""

from typing import Any

import pytest
import trio

from sundog.actors.kernel.actor import Actor, ActorDied, MailboxFull, Ref
from sundog.actors.kernel.clock import Event, now_s, sleep_until
from sundog.actors.messages import Refused


class Echo(Actor):
    """Answers with what it was asked; `hold` makes it wait, `crash` makes it fail."""

    def __init__(self, name: str = "echo", **options: Any) -> None:
        super().__init__(name, **options)
        self.handled: list[Any] = []
        self.life: list[str] = []
        self.may_go_on = trio.Event()

    async def opened(self) -> None:
        self.life.append("opened")

    async def handle(self, message: Any) -> Any:
        if message == "hold":
            await self.may_go_on.wait()
        if message == "crash":
            raise ZeroDivisionError("a bug")
        if message == "refuse":
            return Refused("not today")
        self.handled.append(message)
        return message

    async def closed(self) -> None:
        self.life.append("closed")


async def start(nursery: trio.Nursery, actor: Actor) -> Ref:
    ref = actor.ref("test")
    await nursery.start(actor.live, name=actor.name)
    return ref


async def test_messages_are_handled_one_after_another_in_order() -> None:
    """And an ask is answered by its own reply."""
    async with trio.open_nursery() as nursery:
        actor = Echo()
        ref = await start(nursery, actor)
        ref.tell(1)
        ref.tell(2)
        assert await ref.ask(3) == 3
        assert actor.handled == [1, 2, 3]
        ref.close()


async def test_tell_never_waits() -> None:
    """However many messages nobody has read."""
    async with trio.open_nursery() as nursery:
        actor = Echo()
        ref = await start(nursery, actor)
        ref.tell("hold")
        with trio.CancelScope() as scope:
            scope.cancel()
            for number in range(10_000):
                ref.tell(number)
        assert len(actor.mailbox.queue) == 10_000
        actor.may_go_on.set()
        ref.close()
    assert actor.handled == ["hold", *range(10_000)]


async def test_a_full_bounded_mailbox_raises_at_a_tell() -> None:
    """Back-pressure belongs to the entrance: inside, an overflow is a bug."""
    actor = Echo(capacity=2)
    ref = actor.ref("test")
    ref.tell(1)
    ref.tell(2)
    with pytest.raises(MailboxFull, match="echo has 2 unread messages"):
        ref.tell(3)


async def test_an_ask_waits_for_room() -> None:
    """And is handled after what came before it."""
    async with trio.open_nursery() as nursery:
        actor = Echo(capacity=1)
        ref = await start(nursery, actor)
        ref.tell("hold")
        await trio.sleep(1)
        ref.tell(1)
        answers = []

        async def ask(number: int) -> None:
            answers.append(await ref.ask(number))

        for number in (2, 3, 4):
            nursery.start_soon(ask, number)
        await trio.sleep(1)
        assert answers == [] and len(actor.mailbox.queue) == 1
        actor.may_go_on.set()
        await trio.sleep(1)
        assert sorted(answers) == [2, 3, 4]
        assert actor.handled[:2] == ["hold", 1]
        ref.close()


async def test_a_request_can_be_waited_for_later() -> None:
    """Several are under way at once, and a reply keeps until it is read."""
    async with trio.open_nursery() as nursery:
        ref = await start(nursery, Echo())
        replies = [ref.request(number) for number in range(3)]
        await trio.sleep(1)
        assert [await reply.wait() for reply in reversed(replies)] == [2, 1, 0]
        ref.close()


async def test_an_ask_that_is_cancelled_harms_nobody() -> None:
    """Its answer is thrown away."""
    async with trio.open_nursery() as nursery:
        actor = Echo()
        ref = await start(nursery, actor)
        with trio.move_on_after(1) as scope:
            await ref.ask("hold")
        assert scope.cancelled_caught
        actor.may_go_on.set()
        assert await ref.ask(2) == 2
        ref.close()


async def test_a_refusal_is_a_reply() -> None:
    """Nothing ends by it."""
    async with trio.open_nursery() as nursery:
        ref = await start(nursery, Echo())
        assert await ref.ask("refuse") == Refused("not today")
        assert await ref.ask(1) == 1
        ref.close()


async def test_a_crash_leaves_the_nursery_with_a_note_of_actor_and_message() -> None:
    """As an exception group, like any error of a task."""
    with pytest.raises(ExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            ref = await start(nursery, Echo("the-actor"))
            ref.tell("crash")
            await trio.sleep_forever()
    error = caught.value.exceptions[0]
    assert isinstance(error, ZeroDivisionError)
    assert error.__notes__ == [
        "in actor the-actor, handling 'crash'",
        "mailbox of the-actor: 1 taken, 0 waiting, at most 0 at a time",
    ]


async def test_a_crash_between_messages_says_so() -> None:
    """There is no message to name."""

    class Faulty(Echo):
        async def opened(self) -> None:
            raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            await nursery.start(Faulty().live)
    error: BaseException = caught.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert error.__notes__ == ["in actor echo, between messages"]


async def test_a_crash_fails_every_ask_that_waits_for_its_answer() -> None:
    """The one being handled, those in the mailbox, and those that wait for room."""
    failed = []

    async def ask(ref: Ref, message: str) -> None:
        try:
            await ref.ask(message)
        except ActorDied as error:
            failed.append((message, str(error)))

    actor = Echo(capacity=2)
    async with trio.open_nursery() as outer:
        with pytest.raises(ExceptionGroup):
            async with trio.open_nursery() as cell:
                ref = await start(cell, actor)
                ref.tell("hold")
                await trio.sleep(1)
                for message in ("crash", "queued", "waiting for room"):
                    outer.start_soon(ask, ref, message)
                    await trio.sleep(1)
                actor.may_go_on.set()
                await trio.sleep_forever()
    assert sorted(failed) == [
        ("crash", "echo crashed before it answered"),
        ("queued", "echo ended before it answered"),
        ("waiting for room", "echo has ended and cannot take 'waiting for room'"),
    ]


async def test_nothing_can_be_left_with_an_actor_that_has_ended() -> None:
    """Neither asked nor told: it fails at once, with the message."""
    async with trio.open_nursery() as nursery:
        actor = Echo()
        ref = await start(nursery, actor)
        ref.close()
    with pytest.raises(ActorDied, match="echo has ended and cannot take 'hello'"):
        await ref.ask("hello")
    with pytest.raises(ActorDied):
        ref.tell("hello")


async def test_an_actor_ends_when_its_mailbox_is_empty_and_all_have_hung_up() -> None:
    """Not before: what was told is handled first."""
    async with trio.open_nursery() as nursery:
        actor = Echo()
        first, second = actor.ref("first"), actor.ref("second")
        await nursery.start(actor.live)
        first.close()
        await trio.sleep(1)
        assert actor.life == ["opened"]
        second.tell(1)
        second.tell(2)
        second.close()
        second.close()
    assert actor.handled == [1, 2] and actor.life == ["opened", "closed"]


async def test_hanging_up_twice_counts_once() -> None:
    """Another caller is not hung up on."""
    async with trio.open_nursery() as nursery:
        actor = Echo()
        first, second = actor.ref("first"), actor.ref("second")
        await nursery.start(actor.live)
        first.close()
        first.close()
        assert await second.ask(1) == 1
        second.close()


async def test_an_uncounted_caller_keeps_nobody_alive() -> None:
    """So that no ring keeps itself alive."""
    async with trio.open_nursery() as nursery:
        actor = Echo()
        ref, listener = actor.ref("caller"), actor.ref("upward", counted=False)
        await nursery.start(actor.live)
        listener.tell(1)
        ref.close()
    assert actor.handled == [1] and actor.life == ["opened", "closed"]
    listener.close()


async def test_what_is_told_to_a_listener_that_has_ended_is_dropped() -> None:
    """Upward traffic outlives its listener without harm."""
    async with trio.open_nursery() as nursery:
        actor = Echo()
        ref, listener = actor.ref("caller"), actor.ref("upward", counted=False)
        await nursery.start(actor.live)
        ref.close()
    listener.tell("too late")
    assert actor.handled == []


async def test_an_actor_that_owes_something_stays_past_the_hang_up() -> None:
    """It goes on hearing its listeners' wire until it is idle."""

    class Debtor(Echo):
        @property
        def idle(self) -> bool:
            return "paid" in self.handled

    async with trio.open_nursery() as nursery:
        actor = Debtor()
        ref, upward = actor.ref("caller"), actor.ref("below", counted=False)
        await nursery.start(actor.live)
        ref.close()
        await trio.sleep(1)
        assert actor.life == ["opened"]
        upward.tell("paid")
    assert actor.life == ["opened", "closed"]


async def test_closed_is_not_called_after_a_crash() -> None:
    """The nursery that both live in ends those below."""
    actor = Echo()
    with pytest.raises(ExceptionGroup):
        async with trio.open_nursery() as nursery:
            ref = await start(nursery, actor)
            ref.tell("crash")
            await trio.sleep_forever()
    assert actor.life == ["opened"]


async def test_a_message_nobody_handles_is_a_crash_that_names_it() -> None:
    """The kernel's own `handle` understands nothing."""
    with pytest.raises(ExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            actor = Actor("deaf")
            ref = await start(nursery, actor)
            ref.tell("hello")
            await trio.sleep_forever()
    assert caught.group_contains(NotImplementedError, match="deaf does not understand 'hello'")


async def test_the_tap_sees_every_message_with_time_sender_and_receiver() -> None:
    """Told or asked, in order; replies are no messages."""
    seen: list[tuple[float, str, str, Any]] = []
    async with trio.open_nursery() as nursery:
        actor = Echo(tap=lambda *message: seen.append(message))
        first, second = actor.ref("first"), actor.ref("second")
        await nursery.start(actor.live)
        first.tell("a")
        await sleep_until(2.5)
        assert await second.ask("b") == "b"
        first.close()
        second.close()
    assert seen == [(0.0, "first", "echo", "a"), (2.5, "second", "echo", "b")]


class Counter(Actor):
    """Answers at once, and asks itself or another for more."""

    def __init__(self, name: str = "counter", below: Ref | None = None) -> None:
        super().__init__(name)
        self.below = below
        self.handled: list[tuple[float, Any]] = []

    def handle(self, message: Any) -> Any:
        self.handled.append((now_s(), message))
        match message:
            case "crash":
                raise ZeroDivisionError("a bug")
            case "ask below":
                assert self.below is not None
                self.expect(self.below.request("answer me"), "below")
            case "schedule":
                self.schedule(now_s() + 1.5, Event.TIMEOUT, "it is time")
            case "tell yourself":
                ref = self.ref("itself", counted=False)
                ref.tell("later")
                assert self.handled[-1][1] == "tell yourself", "one message at a time"
        return f"saw {message}"


async def test_a_free_actor_that_need_not_wait_has_handled_a_message_when_tell_returns() -> None:
    """A hop costs a call; and the answer to a request is there when it returns."""
    async with trio.open_nursery() as nursery:
        actor = Counter()
        ref = await start(nursery, actor)
        ref.tell(1)
        assert actor.handled == [(0.0, 1)]
        assert ref.request(2).result() == "saw 2"
        ref.close()


async def test_a_message_to_a_busy_actor_waits_for_its_turn() -> None:
    """Even when it comes out of the very message that is being handled."""
    async with trio.open_nursery() as nursery:
        actor = Counter()
        ref = await start(nursery, actor)
        ref.tell("tell yourself")
        assert [message for _, message in actor.handled] == ["tell yourself", "later"]
        ref.close()


async def test_an_actor_that_has_not_started_handles_nothing() -> None:
    """What was left for it comes with its start."""
    async with trio.open_nursery() as nursery:
        actor = Counter()
        ref = actor.ref("test")
        ref.tell(1)
        assert actor.handled == []
        await nursery.start(actor.live)
        assert actor.handled == [(0.0, 1)]
        ref.close()


async def test_an_expected_answer_comes_as_a_message() -> None:
    """At once or when the other has one; meanwhile the actor is free."""
    async with trio.open_nursery() as nursery:
        slow = Echo("slow")
        actor = Counter(below=await start(nursery, slow))
        ref = await start(nursery, actor)
        ref.tell("ask below")
        assert await ref.ask(1) == "saw 1"
        await trio.sleep(1)
        assert [message for _, message in actor.handled] == ["ask below", 1, "answer me"]
        assert actor.below is not None
        actor.below.close()
        ref.close()


async def test_an_expected_answer_that_will_not_come_is_a_crash() -> None:
    """Nobody goes on waiting for the dead."""
    with pytest.raises(ExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            slow = Echo("slow")
            below = await start(nursery, slow)
            ref = await start(nursery, Counter(below=below))
            below.tell("hold")
            ref.tell("ask below")
            below.tell("crash")
            slow.may_go_on.set()
            slow.mailbox.close()
            await trio.sleep_forever()
    assert caught.group_contains(ActorDied, match="slow ended before it answered")


async def test_a_scheduled_message_comes_at_its_instant() -> None:
    """Unless it is stopped, or the actor has ended."""
    async with trio.open_nursery() as nursery:
        actor = Counter()
        ref = await start(nursery, actor)
        ref.tell("schedule")
        actor.schedule(1.0, Event.TIMEOUT, "stopped").stop()
        await trio.sleep(2)
        assert actor.handled == [(0.0, "schedule"), (1.5, "it is time")]
        ref.tell("schedule")
        ref.close()
    await trio.sleep(2)
    assert len(actor.handled) == 3


async def test_a_crash_is_the_receivers_and_not_the_tellers() -> None:
    """Though the message was handled in the stack of whoever told it."""
    reached = []
    with pytest.raises(ExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            ref = await start(nursery, Counter("the-culprit"))
            ref.tell("crash")
            reached.append("the teller went on")
            await trio.sleep_forever()
    assert reached
    assert caught.value.exceptions[0].__notes__[0] == "in actor the-culprit, handling 'crash'"


class Delegate(Actor):
    """Leaves every answer to the actor below it."""

    def __init__(self, below: Ref) -> None:
        super().__init__("delegate")
        self.below = below

    async def handle(self, message: Any) -> Any:
        return self.below.request(message)

    async def closed(self) -> None:
        self.below.close()


async def test_an_actor_may_leave_the_answer_to_another_and_is_free_meanwhile() -> None:
    """The asker gets the other's answer; a second message is handled before it comes."""
    async with trio.open_nursery() as nursery:
        echo = Echo()
        delegate = Delegate(await start(nursery, echo))
        ref = await start(nursery, delegate)
        slow = ref.request("hold")
        quick = ref.request("next")
        await sleep_until(1.0)
        assert not delegate.mailbox.queue, "it waited for the answer it had left to another"
        echo.may_go_on.set()
        assert (await slow.wait(), await quick.wait()) == ("hold", "next")
        ref.close()


async def test_an_answer_left_to_an_actor_that_dies_fails() -> None:
    """Nobody waits for ever for an answer that was passed on."""
    with pytest.raises(ExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            delegate = Delegate(await start(nursery, Echo()))
            ref = await start(nursery, delegate)
            with trio.CancelScope(shield=True), pytest.raises(ActorDied):
                await ref.ask("crash")
    assert caught.group_contains(ZeroDivisionError)
