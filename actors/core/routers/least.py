"""The replica with the least to do, of all or of two."""

from actors.core.records import dataclass
from actors.core.request import Submit
from actors.core.routers.fleet import Fleet
from actors.core.routers.policy import RouterPolicy


@dataclass(frozen=True)
class LeastRequests(RouterPolicy):
    """The fewest unfinished requests."""

    def choose(self, request: Submit, fleet: Fleet) -> int:
        return min(fleet.up, key=fleet.num_requests)


@dataclass(frozen=True)
class LeastTokens(RouterPolicy):
    """The fewest tokens of unfinished requests: prompts, and of answers what is predicted or allowed.

    Nobody knows how long an answer will be; where nothing is said, prompts count alone.
    """

    def choose(self, request: Submit, fleet: Fleet) -> int:
        return min(fleet.up, key=fleet.num_tokens)


@dataclass(frozen=True)
class PowerOfTwo(RouterPolicy):
    """Of two replicas drawn at random the one with fewer unfinished requests.

    Mitzenmacher, "The power of two choices in randomized load balancing" (IEEE TPDS 12, 2001): nearly as even
    as looking at all, and Routers that do not know of each other do not all choose the same one.
    """

    def choose(self, request: Submit, fleet: Fleet) -> int:
        up = fleet.up
        first = int(fleet.random(request, 0) * len(up))
        second = (first + 1 + int(fleet.random(request, 1) * (len(up) - 1))) % len(up)
        return min(up[first], up[second], key=fleet.num_requests)
