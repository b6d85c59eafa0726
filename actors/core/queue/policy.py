"""Interface of scheduling policies: the next request to admit, and the one to preempt.

Law: a policy is a frozen object of pure functions. It reads the requests and a `View` of the past. Counts are
kept in the scheduler's state, or in the memory that the policy declares, so that the policy behaves alike in
every world. Nothing it can read reveals the length of an answer.
"""

from math import inf
from typing import ClassVar, Final, NamedTuple, Protocol, Self

from sundog.actors.core.queue.view import View
from sundog.actors.core.records import dataclass
from sundog.actors.core.request import Request

NEVER: Final = 1 << 62
"""Step number that is never reached."""


class RankValue(Protocol):
    """Value of a rank: a number, a text, or a tuple of them."""

    def __lt__(self, other: Self, /) -> bool: ...

    def __gt__(self, other: Self, /) -> bool: ...


class Rank(NamedTuple):
    """A rank with the time or step until which it is valid.

    The policy is called again when `until_s` is reached, in step `until_step`, or, with
    `until_memory_changes`, after a call of `refuse`, `admitted`, `sampled`, `preempted` or `finished`,
    whichever comes first. Without a limit the rank is valid while the request waits.

    Args:
        value: Number, text, or tuple of them; the smallest is next.
        until_s: Time on the run's clock at which the rank expires.
        until_step: Number of the step in which the rank expires.
        until_memory_changes: Whether the rank depends on `view.memory`.
        per_s: Change of the rank per second: the rank is `value + per_s * view.now_s`; `value` is a number.

    Example:
        >>> import sundog
        >>> sundog.Rank(3, until_s=10.0).value
        3
    """

    value: RankValue
    until_s: float = inf
    until_step: int = NEVER
    until_memory_changes: bool = False
    per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """The refusal of a request, which its client receives as HTTP 429.

    Args:
        reason: Reason, in words for the client.
        retry_after_s: Seconds after which the client may try again; None if unknown.

    Example:
        >>> import sundog
        >>> sundog.Refusal("the queue is full", retry_after_s=2.0).reason
        'the queue is full'
    """

    reason: str
    retry_after_s: float | None = None


class Policy:
    """Base of scheduling policies: the order of the queue, and the choice of victims.

    A subclass overrides what it needs and inherits first come, first served. It should be a frozen dataclass
    without state: its fields are its parameters, and `new_memory` makes what must be counted.

    Example:
        >>> import sundog
        >>> class LongestFirst(sundog.Policy):
        ...     def rank(self, request, view):
        ...         return -request.submit.num_prompt_tokens
        >>> run = sundog.replay(
        ...     "traces/chat-poisson-2rps-5min.jsonl.gz",
        ...     gpu="h100", limit=20, policy=LongestFirst,
        ... )
        >>> run.figures["num_finished"]
        20
    """

    returns_to_front: ClassVar[bool] = False
    """Whether a preempted request goes before all waiting requests of the same rank."""
    is_dynamic: ClassVar[bool] = False
    """Whether a plain rank, or the urgency of running requests, may change while a request waits.

    All plain ranks are then computed again before each admission: O(waiting) calls, or O(keys) with
    `rank_key`.
    """
    prefills_first: ClassVar[bool] = False
    """Whether prefills, waiting ones included, take from the token budget before decodes."""
    pauses: ClassVar[bool] = False
    """Whether `quota` may return 0.

    It is then called for decodes as well, O(running) a step, and decode runs are switched off.
    """

    @property
    def token_weights(self) -> tuple[float, float] | None:
        """Weights of prompt and output tokens in `View.service`; None if service is not counted."""
        return None

    def rank(self, request: Request, view: View) -> RankValue | Rank:
        """Return the place of a request in the waiting queue: the smallest rank runs first.

        It is called when the request enters the queue, and again before an admission if the returned `Rank`
        has expired or the policy `is_dynamic`. Equal ranks run in order of arrival in the queue.

        Args:
            request: A waiting request.
            view: The state of the scheduler.

        Returns:
            A number, a text or a tuple of them, or a `Rank` that limits how long it is valid.
        """
        return 0

    def rank_key(self, request: Request, view: View) -> object:
        """Return the group of a request, within which the order of arrival never changes.

        Within a group, a request that has waited longer never ranks after one that has waited less. Only the
        first request of each group is then ranked again. It is called when the request enters the queue, and
        when the request gets a token there. It is used only if it is defined in the class that defines
        `rank`, or below.

        Args:
            request: A waiting request.
            view: The state of the scheduler.

        Returns:
            A hashable group; None for a group of one.
        """
        return None

    def urgency(self, request: Request, view: View) -> RankValue:
        """Return the urgency of a waiting or running request; smaller is more urgent.

        With `preempt_for_priority` a waiting request may preempt running requests that are strictly less
        urgent.

        Args:
            request: A waiting or running request.
            view: The state of the scheduler.

        Returns:
            A number, a text or a tuple of them.

        Raises:
            NotImplementedError: The policy does not define it, and cannot be used with that option.
        """
        raise NotImplementedError(f"{type(self).__name__} has no order of urgency")

    def quota(self, request: Request, view: View) -> int | None:
        """Return the largest number of the request's tokens to compute in this step.

        It is called at the start of a step for each running request with several tokens to compute, and for a
        waiting request when it is next. It needs chunked prefill.

        Args:
            request: A running request, or the next waiting one.
            view: The state of the scheduler.

        Returns:
            At least 1; None for no limit. A policy that `pauses` may return 0: a running request then keeps
            its blocks and computes nothing, and a waiting request keeps all requests behind it waiting.
        """
        return None

    def new_memory(self) -> object:
        """Return the policy's memory of one replica, which is `view.memory` in all other methods.

        Only `refuse`, `admitted`, `sampled`, `preempted` and `finished` may change it. How often the other
        methods are called is not specified.

        Returns:
            Any object; None if the policy needs no memory.
        """
        return None

    def refuse(self, request: Request, view: View) -> Refusal | None:
        """Decide whether to refuse a request that has arrived. Called once, before it waits.

        A refused request ends at once: it is never ranked, and `finished` is not called for it.

        Args:
            request: The new request.
            view: The state of the scheduler.

        Returns:
            The refusal; None if the request may wait.
        """
        return None

    def admitted(self, request: Request, view: View) -> None:
        """Handle the admission of a waiting request, the first or a later one.

        Args:
            request: The request, which is about to run.
            view: The state of the scheduler.
        """

    def sampled(self, request: Request, view: View) -> None:
        """Handle the end of a step that gave a request a token, or several with drafts.

        It is called in order of admission. Defining it costs O(running) a step and switches decode runs off.

        Args:
            request: A running request.
            view: The state of the scheduler; `view.now_s` is the end of the step.
        """

    def preempted(self, request: Request, view: View) -> None:
        """Handle the preemption of a running request, before it is ranked again.

        Args:
            request: The request, which has lost its blocks.
            view: The state of the scheduler.
        """

    def finished(self, request: Request, view: View) -> None:
        """Handle the end or abort of a request, running or waiting.

        Args:
            request: The request.
            view: The state of the scheduler.
        """

    def victim(self, running: dict[str, Request], view: View) -> Request:
        """Return the request to preempt when blocks run out.

        Args:
            running: Running requests by id, in order of admission; at least one.
            view: The state of the scheduler.

        Returns:
            One of `running`. By default the latest admitted.
        """
        return running[next(reversed(running))]


def defines(policy: object, method: str, kind: type = Policy) -> bool:
    """Return whether a policy overrides a method of its kind."""
    own = getattr(policy, "inner", policy)
    return getattr(type(own), method) is not getattr(kind, method)


def gives_keys(policy: Policy) -> bool:
    """Return whether the policy has a `rank_key` that was written for its `rank`."""
    own = type(getattr(policy, "inner", policy))
    definer = next(c for c in own.__mro__ if "rank_key" in vars(c) or "rank" in vars(c))
    return definer is not Policy and "rank_key" in vars(definer)


def has_urgency(policy: Policy) -> bool:
    """Return whether the policy defines an order of urgency."""
    return defines(policy, "urgency")


def class_name(policy: object) -> str:
    """Return the class name of a policy or router, without its guard."""
    return type(getattr(policy, "inner", policy)).__name__
