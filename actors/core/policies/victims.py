"""Choices of a victim that more than one policy makes."""

from actors.core.queue.policy import Policy
from actors.core.queue.view import View
from actors.core.request import Request


def least_urgent(policy: Policy, running: dict[str, Request], view: View) -> Request:
    """The least urgent by the policy's own order; of equals the latest admitted."""
    return max(reversed(running.values()), key=lambda request: policy.urgency(request, view))


def least_recompute(running: dict[str, Request], view: View) -> Request:
    """The request that loses the fewest computed tokens; of equals the latest admitted.

    Tokens in blocks that another request holds too are not lost. The request that would lose most is never
    chosen while others run, so one request always advances.
    """
    return min(reversed(running.values()), key=view.num_lost_tokens)
