"""Router policies: the choice of a replica for each request.

A router policy is a small frozen object with pure functions, chosen by name in every world. To add one,
subclass `RouterPolicy`; docs/routing.md shows how to use one from a file.
"""

from collections.abc import Callable

from sundog.actors.core.queue.policy import Refusal
from sundog.actors.core.request import Submit
from sundog.actors.core.routers.policy import Fleet, RouterPolicy, Unfinished
from sundog.actors.core.routers.rules import (
    DataParallel,
    LeastRequests,
    LeastTokens,
    PowerOfTwo,
    PrefixAware,
    RoundRobin,
    SessionAffinity,
    Weighted,
)

__all__ = ["ROUTERS", "Fleet", "Refusal", "RoundRobin", "RouterPolicy", "Submit", "Unfinished"]

ROUTERS: dict[str, Callable[..., RouterPolicy]] = {
    "round-robin": RoundRobin,
    "least-requests": LeastRequests,
    "least-tokens": LeastTokens,
    "power-of-two": PowerOfTwo,
    "session-affinity": SessionAffinity,
    "prefix-aware": PrefixAware,
    "weighted": Weighted,
    "data-parallel": DataParallel,
}
"""Router policies by name."""
