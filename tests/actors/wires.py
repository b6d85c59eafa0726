"""Typed and mistyped sends, checked by mypy in `test_wires.py` and never run.

Each `type: ignore` marks a required error: mypy reports those that are unused.
"""

from typing import assert_type

from sundog.actors.kernel.actor import Actor, Handled, Ref, Reply, answer
from sundog.actors.messages import (
    Abort,
    Accepted,
    Batch,
    Cancel,
    Capacity,
    Done,
    Generate,
    Interrupt,
    Load,
    Refused,
    ResetPrefixCache,
    StepResult,
    Submit,
)


async def asks_get_the_type_that_the_message_names(
    front: Ref[Generate | Cancel], executor: Ref[Batch | Interrupt | Load], cache: Ref[ResetPrefixCache]
) -> None:
    """A union of outcomes included; a NamedTuple like any other message."""
    assert_type(await front.ask(Generate("hello")), Accepted | Refused)
    assert_type(await cache.ask(ResetPrefixCache()), Done | Refused)
    assert_type(await executor.ask(Load()), Capacity)
    assert_type(executor.request(Batch(1)), Reply[StepResult])


async def nothing_can_be_sent_that_the_receiver_does_not_understand(
    front: Ref[Generate | Cancel], scheduler: Ref[Submit | Abort]
) -> None:
    """Neither told nor asked; and what names no answer cannot be asked."""
    front.tell(Cancel("r1"))
    scheduler.tell(Cancel("r1"))  # type: ignore[arg-type]
    scheduler.tell("r1")  # type: ignore[arg-type]
    await front.ask(Load())  # type: ignore[arg-type]
    await front.ask(Cancel("r1"))  # type: ignore[arg-type]


def an_address_serves_whoever_sends_less(understands_both: Ref[Submit | Abort]) -> Ref[Submit]:
    """But not whoever sends more."""
    more: Ref[Submit | Abort | Cancel] = understands_both  # type: ignore[assignment]
    more.close()
    return understands_both


class Front(Actor[Generate | Cancel | Capacity]):
    """Answers each message with what it names, and forgets none."""

    def handle(self, message: Generate | Cancel | Capacity) -> Handled:
        match message:
            case Generate():
                return answer(message, Refused("not today"))
            case Cancel():
                answer(message, None)  # type: ignore[call-overload]
            case _:
                self.unknown(message)  # type: ignore[arg-type]
        return None

    def wrong_answers(self, generate: Generate, load: Load) -> None:
        """Whether at once, later or by a coroutine."""
        answer(generate, Capacity(1, 1))  # type: ignore[misc]
        later: Reply[StepResult] = Reply()
        answer(load, later)  # type: ignore[misc]
        answer(load, self.capacity())
        answer(generate, self.capacity())  # type: ignore[misc]

    def bare_answer(self) -> Handled:
        """An answer that nobody checked against its question is none."""
        return Refused("not today")  # type: ignore[return-value]

    async def capacity(self) -> Capacity:
        return Capacity(1, 1)

    def expected(self, capacity: Reply[Capacity], result: Reply[StepResult]) -> None:
        """Only what the actor understands can come to it as a message."""
        self.expect(capacity, "executor")
        self.expect(result, "executor")  # type: ignore[arg-type]
