"""The interface of scheduling policies: which request is admitted next, and which is preempted.

Law: a policy is a frozen object of pure functions. It sees the requests and a `View` of the past. What has to
be counted is counted in the scheduler's state, or in the memory that the policy declares, so that the policy
runs alike in every world. Nothing it can see tells how long an answer will be.
"""

from dataclasses import dataclass
from math import inf
from typing import ClassVar, Final, NamedTuple, Protocol, Self

from sundog.actors.core.queue.view import View
from sundog.actors.core.request import Request

NEVER: Final = 1 << 62
"""A number that no step has."""


class RankValue(Protocol):
    """A number, a text, or a tuple of them, which compares with its like."""

    def __lt__(self, other: Self, /) -> bool: ...

    def __gt__(self, other: Self, /) -> bool: ...


class Rank(NamedTuple):
    """A rank that says until when it holds.

    It is asked again when the clock comes to `until_s`, in step `until_step`, and, if it was drawn from
    `view.memory`, after each call of `refuse`, `admitted`, `sampled`, `preempted` and `finished`, whichever
    comes first. Without a limit it holds while the request waits. With `per_s` the rank is
    `value + per_s * view.now_s`, where `value` is a number: it moves while it holds.
    """

    value: RankValue
    until_s: float = inf
    until_step: int = NEVER
    until_memory_changes: bool = False
    per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request is turned away: `reason` is for its client, who may come again after `retry_after_s`."""

    reason: str
    retry_after_s: float | None = None


class Policy:
    """A subclass states what it needs and inherits the rest, which is first come, first served."""

    returns_to_front: ClassVar[bool] = False
    """True if a preempted request goes before all waiting ones of the same rank."""
    is_dynamic: ClassVar[bool] = False
    """True if a plain rank, or the urgency of running requests, may change while a request waits.

    Each plain rank is then asked again before each admission: O(waiting), or O(keys) with a `rank_key`.
    """
    prefills_first: ClassVar[bool] = False
    """True if prefills, waiting ones included, take from the token budget before decodes."""
    pauses: ClassVar[bool] = False
    """True if a `quota` may be 0. Decodes are then asked for theirs, too: O(running) a step, and no decode
    runs."""

    @property
    def token_weights(self) -> tuple[float, float] | None:
        """Weights of prompt and output tokens in `View.service`; None: service is not counted."""
        return None

    def rank(self, request: Request, view: View) -> RankValue | Rank:
        """The request's place in the waiting queue: the smallest rank runs first.

        Ties are broken by order of arrival in the queue. Called once whenever the request enters the queue,
        and again before an admission when the answer, a `Rank`, holds no longer or the policy `is_dynamic`.
        """
        return 0

    def rank_key(self, request: Request, view: View) -> object:
        """The group of the request, in which ranks never change the order; None: it stands alone.

        Of requests with the same key, one that has waited longer never ranks after one that has waited less:
        only the first of a key is asked for its rank again. Called when the request enters the queue, and
        when it is given a token there. Heeded if it is defined where `rank` is, or further down.
        """
        return None

    def urgency(self, request: Request, view: View) -> RankValue:
        """The urgency of a waiting or running request; smaller is more urgent.

        With `preempt_for_priority` a waiting request may take the place of running ones that are
        strictly less urgent. A policy that does not define it cannot be used with that option.
        """
        raise NotImplementedError(f"{type(self).__name__} has no order of urgency")

    def quota(self, request: Request, view: View) -> int | None:
        """Most of the request's known tokens to compute in this step, at least 1; None: no limit.

        Called at the start of a step for each running request with more than one token to compute, and for a
        waiting one when it is next. Needs chunked prefill. A policy that `pauses` is asked about decodes,
        too, and may answer 0: a running request then keeps its blocks and computes nothing, a waiting one
        keeps all behind it waiting.
        """
        return None

    def new_memory(self) -> object:
        """The policy's memory, made once for each replica: `view.memory` everywhere else.

        Only `refuse`, `admitted`, `sampled`, `preempted` and `finished` may change it: how often others are
        called is not promised.
        """
        return None

    def refuse(self, request: Request, view: View) -> Refusal | None:
        """Turn a request away that has arrived, before it waits; None: it may wait. Called once.

        A request that is refused ends at once: it is never ranked, and `finished` is not called.
        """
        return None

    def admitted(self, request: Request, view: View) -> None:
        """Note that a waiting request is admitted, for the first time or again."""

    def sampled(self, request: Request, view: View) -> None:
        """Note that a step has given a request a token, or several with drafts; `view.now_s` is its end.

        Called in order of admission. Costs O(running) a step where it is defined, and switches decode runs
        off.
        """

    def preempted(self, request: Request, view: View) -> None:
        """Note that a running request has lost its blocks, before it is ranked again."""

    def finished(self, request: Request, view: View) -> None:
        """Note that a request has ended or was aborted, running or waiting."""

    def victim(self, running: dict[str, Request], view: View) -> Request:
        """The request to preempt when blocks run out; `running` is not empty, in order of admission."""
        return running[next(reversed(running))]


def defines(policy: object, method: str, kind: type = Policy) -> bool:
    """True if the policy has its own method of this name, instead of the one inherited from its kind."""
    own = getattr(policy, "inner", policy)
    return getattr(type(own), method) is not getattr(kind, method)


def gives_keys(policy: Policy) -> bool:
    """True if the policy has a `rank_key` that knows its `rank`."""
    own = type(getattr(policy, "inner", policy))
    definer = next(c for c in own.__mro__ if "rank_key" in vars(c) or "rank" in vars(c))
    return definer is not Policy and "rank_key" in vars(definer)


def has_urgency(policy: Policy) -> bool:
    """True if the policy defines an order of urgency."""
    return defines(policy, "urgency")


def class_name(policy: object) -> str:
    """The name of a policy or a router in its author's words."""
    return type(getattr(policy, "inner", policy)).__name__
