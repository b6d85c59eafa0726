"""Built-in router policies."""

from bisect import bisect_left
from collections.abc import Callable
from math import ceil, inf
from typing import ClassVar

from sundog.actors.core.records import dataclass
from sundog.actors.core.request import Submit
from sundog.actors.core.routers.policy import INDEXES, Fleet, IndexName, RouterPolicy


@dataclass(frozen=True)
class RoundRobin(RouterPolicy):
    """Sends requests to the replicas in turn."""

    def new_memory(self) -> list[int]:
        return [0]

    def choose(self, request: Submit, fleet: Fleet) -> int:
        up, turn = fleet.up, fleet.memory[0]
        replica = up[bisect_left(up, turn) % len(up)]
        fleet.memory[0] = (replica + 1) % fleet.num_replicas
        return replica


@dataclass(frozen=True)
class LeastRequests(RouterPolicy):
    """Chooses the replica with the fewest unfinished requests."""

    def choose(self, request: Submit, fleet: Fleet) -> int:
        return fleet.idlest


@dataclass(frozen=True)
class LeastTokens(RouterPolicy):
    """Chooses the replica with the fewest tokens of unfinished requests.

    Prompts count in full, answers by their predicted or allowed length; without either, only the prompt
    counts.
    """

    def choose(self, request: Submit, fleet: Fleet) -> int:
        return min(fleet.up, key=fleet.num_tokens)


@dataclass(frozen=True)
class PowerOfTwo(RouterPolicy):
    """Samples two replicas at random, and chooses the one with fewer unfinished requests.

    Mitzenmacher, "The power of two choices in randomized load balancing" (IEEE TPDS 12, 2001): nearly as even
    as comparing all, and independent Routers do not all choose the same replica.
    """

    def choose(self, request: Submit, fleet: Fleet) -> int:
        up = fleet.up
        first = int(fleet.random(request, 0) * len(up))
        second = (first + 1 + int(fleet.random(request, 1) * (len(up) - 1))) % len(up)
        return min(up[first], up[second], key=fleet.num_requests)


RULES = ("kv", "counts")


class _Sent:
    """What a front end of vLLM remembers between two publications."""

    __slots__ = ("begin", "number", "waiting")

    def __init__(self) -> None:
        self.begin: int | None = None
        """Rank that the scan begins with; None before the first request."""
        self.number = -1
        self.waiting: list[int] = []
        """Requests sent to each rank since the last publication."""


@dataclass(frozen=True)
class DataParallel(RouterPolicy):
    """vLLM's balancer of data-parallel ranks: the lowest score wins, by counts that are up to 100 ms old.

    Follows DPLBAsyncMPClient and DPCoordinator: requests sent since the last publication count as waiting,
    and the scan begins at a rotating rank. With `rule=counts` (before vLLM 0.27) the score is 4 x waiting +
    running. With `rule=kv` (0.27 and later) it is the greater of waiting + running and this front end's
    unfinished requests there, plus 6 x waiting x the share of KV in use above a half. With several front
    ends, each request sent counts once per front end.
    """

    follows_steps: ClassVar[bool] = True
    stale_s: ClassVar[float] = 0.1

    rule: str = "kv"

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"rule is {self.rule!r}: known are {', '.join(RULES)}")

    def new_memory(self) -> _Sent:
        return _Sent()

    def choose(self, request: Submit, fleet: Fleet) -> int:
        memory, count, number = fleet.memory, fleet.num_replicas, fleet.num_published
        if number != memory.number:
            memory.number, memory.waiting = number, [0] * count
        begin = memory.begin
        if begin is None:
            begin = count * fleet.router_number // fleet.num_routers
        up, has_kv = frozenset(fleet.up), self.rule == "kv"
        lowest, best = inf, -1
        for place in range(count):
            replica = (begin + place) % count
            if replica not in up:
                continue
            waiting, running, usage = fleet.published(replica)
            waiting += memory.waiting[replica]
            if has_kv:
                score = float(max(fleet.num_routers * fleet.num_requests(replica), waiting + running))
                score += waiting * 6.0 * max(0.0, usage - 0.5)
            else:
                score = float(waiting * 4 + running)
            if score < lowest:
                lowest, best = score, replica
        memory.waiting[best] += fleet.num_routers
        memory.begin = (begin + 1) % count
        return best


KEYS = ("session", "tenant")


@dataclass(frozen=True)
class SessionAffinity(RouterPolicy):
    """Replica by session, by rendezvous hashing (Thaler, Ravishankar, IEEE ToN 6, 1998).

    The loss of a replica moves only its own sessions, and they return with it. A request without a session is
    hashed by its tenant (with `key=tenant` always); without either it goes to the least busy replica. A
    replica with `bound` times the mean of unfinished requests is skipped in favour of the session's next one
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
            return fleet.idlest
        if self.bound == inf:
            return home(name, fleet)
        most = ceil(self.bound * (1 + sum(map(fleet.num_requests, up))) / len(up))
        return home(name, fleet, most)


def session_of(request: Submit) -> str | None:
    """Return the name that routes a request: its session, else its tenant."""
    return request.tenant if request.session is None else request.session


def home(name: str, fleet: Fleet, most: float = inf) -> int:
    """Return the first replica in the hash order of a name that is up with fewer than `most` requests.
    O(replicas)
    """
    free = [replica for replica in fleet.up if fleet.num_requests(replica) < most]
    return max(free, key=lambda replica: fleet.random("affinity", name, replica))


@dataclass(frozen=True)
class PrefixAware(RouterPolicy):
    """Replica that would compute the prompt first: fewest tokens to compute for it and before it.

    Cached tokens of the prompt are weighed against the waiting prompt tokens, one for one, and against `load`
    times the tokens of unfinished requests, whose decodes slow each step. `index` is the source of cache
    contents: prompts sent (`own`) or the replicas' KV events (`events`). NVIDIA Dynamo's KV router has a
    similar cost function.
    """

    follows_steps: ClassVar[bool] = True

    index: IndexName = "own"
    load: float = 0.0

    def __post_init__(self) -> None:
        if self.index not in INDEXES[1:]:
            raise ValueError(f"index is {self.index!r}: known are own, events")
        if not 0 <= self.load < float("inf"):
            raise ValueError(f"load is {self.load}: it must be at least 0 and finite")

    def score(self, request: Submit, replica: int, fleet: Fleet) -> float:
        before = fleet.num_prefill_tokens(replica) + self.load * fleet.num_tokens(replica)
        return fleet.num_hit_tokens(request, replica) - before


WEIGHTS = ("prefix", "load", "tokens", "prefill", "session")


@dataclass(frozen=True)
class Weighted(RouterPolicy):
    """Highest sum of weighted scores, each from 0 to 1, as in inference gateways.

    `prefix` is the cached share of the prompt (by `index`, as in `prefix-aware`); `load`, `tokens` and
    `prefill` are 1 for a replica with none and 0 for the one with most of unfinished requests, their tokens,
    or prompt tokens to compute; `session` is 1 for the session's own replica.
    """

    follows_steps: ClassVar[bool] = True

    prefix: float = 0
    load: float = 0
    tokens: float = 0
    prefill: float = 0
    session: float = 0
    index: IndexName = "own"

    def __post_init__(self) -> None:
        if self.index not in INDEXES[1:]:
            raise ValueError(f"index is {self.index!r}: known are own, events")
        for name in WEIGHTS:
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 0 and finite")
        if not any(getattr(self, name) for name in WEIGHTS):
            raise ValueError(f"all weights are 0: give one of {', '.join(WEIGHTS)}, as in prefix=1,load=0.5")
        if not self.prefix:
            object.__setattr__(self, "index", "none")

    def choose(self, request: Submit, fleet: Fleet) -> int:
        scores = dict.fromkeys(fleet.up, 0.0)
        if self.prefix:
            for replica in scores:
                hit_tokens = fleet.num_hit_tokens(request, replica)
                scores[replica] += self.prefix * hit_tokens / request.num_prompt_tokens
        for weight, count in (
            (self.load, fleet.num_requests),
            (self.tokens, fleet.num_tokens),
            (self.prefill, fleet.num_prefill_tokens),
        ):
            if weight:
                _add(scores, weight, count)
        name = session_of(request)
        if self.session and name is not None:
            scores[home(name, fleet)] += self.session
        return max(scores, key=lambda replica: (scores[replica], -fleet.num_requests(replica)))


def _add(scores: dict[int, float], weight: float, count: Callable[[int], int]) -> None:
    most = max(map(count, scores))
    for replica in scores if most else ():
        scores[replica] += weight * (1 - count(replica) / most)
