"""What a scheduling policy decides: who is next among those that wait, and who is preempted."""

from typing import Any, Protocol

from actors.core.request import Request


class Policy(Protocol):
    """A frozen object of pure functions. A subclass states what it needs and inherits the rest."""

    returns_to_front: bool = False
    """Whether a preempted request goes before all that wait, whatever its rank."""

    def rank(self, request: Request) -> Any:
        """The request's place among those that wait: the smallest runs first.

        Ties are broken by order of arrival in the queue. Asked once whenever it enters the queue.
        """
        return 0

    def victim(self, running: dict[str, Request]) -> Request:
        """Whom to preempt when blocks run out; `running` is not empty and in order of admission."""
        return running[next(reversed(running))]
