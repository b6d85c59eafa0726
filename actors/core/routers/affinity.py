"""Requests of one session, or of one tenant, to one replica."""

from math import ceil, inf

from actors.core.records import dataclass
from actors.core.request import Submit
from actors.core.routers.fleet import Fleet
from actors.core.routers.policy import RouterPolicy

KEYS = ("session", "tenant")


@dataclass(frozen=True)
class SessionAffinity(RouterPolicy):
    """The replica that a session's name draws, by rendezvous hashing (Thaler, Ravishankar, IEEE ToN 6, 1998).

    A replica that is lost moves only its own sessions, and they come back with it. A request without a
    session goes by its tenant (with `key=tenant` always), one without either to the least busy replica. A
    replica that has `bound` times the mean of unfinished requests is passed over for the session's next one
    (Mirrokni, Thorup, Zadimoghaddam, "Consistent hashing with bounded loads", SODA 2018).
    """

    key: str = "session"
    bound: float = inf

    def __post_init__(self) -> None:
        if self.key not in KEYS:
            raise ValueError(f"key is {self.key!r}: known are {', '.join(KEYS)}")
        if not self.bound > 1:
            raise ValueError(f"bound is {self.bound}: it must be above 1")

    def choose(self, request: Submit, fleet: Fleet) -> int:
        up, name = fleet.up, request.tenant if self.key == "tenant" else session_of(request)
        if name is None:
            return min(up, key=fleet.num_requests)
        if self.bound == inf:
            return home(name, fleet)
        most = ceil(self.bound * (1 + sum(map(fleet.num_requests, up))) / len(up))
        return home(name, fleet, most)


def session_of(request: Submit) -> str | None:
    """What a request goes by: its session, else its tenant."""
    return request.tenant if request.session is None else request.session


def home(name: str, fleet: Fleet, most: float = inf) -> int:
    """The replica that a name draws, of those that are up and have fewer than `most` requests. O(replicas)"""
    free = [replica for replica in fleet.up if fleet.num_requests(replica) < most]
    return max(free, key=lambda replica: fleet.random("affinity", name, replica))
