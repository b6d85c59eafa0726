"""Router policies: small frozen objects of pure functions, chosen by name in every world."""

from collections.abc import Callable

from actors.core.request import Submit
from actors.core.routers.affinity import SessionAffinity
from actors.core.routers.fleet import Fleet
from actors.core.routers.least import LeastRequests, LeastTokens, PowerOfTwo
from actors.core.routers.policy import RouterPolicy
from actors.core.routers.prefix_aware import PrefixAware
from actors.core.routers.round_robin import RoundRobin
from actors.core.routers.weighted import Weighted

__all__ = ["ROUTERS", "Fleet", "RoundRobin", "RouterPolicy", "Submit"]

ROUTERS: dict[str, Callable[..., RouterPolicy]] = {
    "round-robin": RoundRobin,
    "least-requests": LeastRequests,
    "least-tokens": LeastTokens,
    "power-of-two": PowerOfTwo,
    "session-affinity": SessionAffinity,
    "prefix-aware": PrefixAware,
    "weighted": Weighted,
}
"""The router policies that can be asked for by name."""
