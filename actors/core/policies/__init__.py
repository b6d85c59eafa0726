"""Scheduling policies: small frozen objects of pure functions, chosen by name in every world."""

from collections.abc import Callable

from actors.core.policies.earliest_deadline import EarliestDeadline
from actors.core.policies.fcfs import Fcfs
from actors.core.policies.longest_prefix import LongestPrefixMatch
from actors.core.policies.mlfq import Mlfq
from actors.core.policies.prefill_first import PrefillFirst
from actors.core.policies.priority import Priority
from actors.core.policies.shortest_prompt import ShortestPrompt
from actors.core.policies.shortest_remaining import ShortestRemaining
from actors.core.policies.vtc import VirtualTokenCounter
from actors.core.queue.policy import Policy, Refusal, class_name, has_urgency
from actors.core.queue.view import View
from actors.core.request import Request

__all__ = ["POLICIES", "Fcfs", "Policy", "Priority", "Refusal", "Request", "View", "has_urgency", "name_of"]

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
"""The policies that can be asked for by name; `decode-first` is another name for `fcfs`."""


def name_of(policy: Policy) -> str:
    """What our own policy is asked for by; the class of another."""
    names = (name for name, cls in POLICIES.items() if cls is type(policy))
    return next(names, class_name(policy))
