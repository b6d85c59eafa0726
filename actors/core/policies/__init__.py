"""Scheduling policies: the order of the queue, and which request is preempted.

A policy is a small frozen object with pure functions, chosen by name in every world. To add one, subclass
`Policy` and enter the class in `POLICIES`; docs/policies.md shows how to use one from a file.

Example:
    >>> from sundog.actors.core.policies import POLICIES
    >>> POLICIES["priority"]().returns_to_front
    False
"""

from collections.abc import Callable

from sundog.actors.core.policies.orders import (
    EarliestDeadline,
    Fcfs,
    LongestPrefixMatch,
    Mlfq,
    PrefillFirst,
    Priority,
    ShortestPrompt,
    ShortestRemaining,
    VirtualTokenCounter,
)
from sundog.actors.core.queue.policy import Policy, Rank, Refusal, class_name, has_urgency
from sundog.actors.core.queue.view import View
from sundog.actors.core.request import Request

__all__ = [
    "POLICIES",
    "Fcfs",
    "Policy",
    "Priority",
    "Rank",
    "Refusal",
    "Request",
    "View",
    "has_urgency",
    "name_of",
]

POLICIES: dict[str, Callable[..., Policy]] = {
    "fcfs": Fcfs,
    "priority": Priority,
    "shortest-prompt": ShortestPrompt,
    "shortest-remaining": ShortestRemaining,
    "longest-prefix": LongestPrefixMatch,
    "earliest-deadline": EarliestDeadline,
    "vtc": VirtualTokenCounter,
    "mlfq": Mlfq,
    "prefill-first": PrefillFirst,
    "decode-first": Fcfs,
}
"""Policies by name; `decode-first` is an alias of `fcfs`."""


def name_of(policy: Policy) -> str:
    """Return the option name of a built-in policy, or the class name of another."""
    names = (name for name, cls in POLICIES.items() if cls is type(policy))
    return next(names, class_name(policy))
