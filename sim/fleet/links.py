"""The links over which keys and values go from engine to engine: bandwidth, latency, and how they are shared.

Each rank of an engine has a link of its own, as with a NIC beside each GPU, and all ranks move their part of
a request at once: so an engine has a rate in tokens a second, each way. Transfers under way
share what each engine sends and receives by max-min fairness, as flows in a network without loss do
(Bertsekas, Gallager, "Data Networks", 6.5.2): all rates grow alike, until a link is full, and those that go
over it stay.

Law: while transfers are under way, each has a rate that no link on its way could raise without lowering a
transfer that is no faster. Blocks go whole, and are of use when the last has come.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

from sundog.actors.kernel.actor import Actor, Handled, Reply, answer
from sundog.actors.kernel.clock import Event, Timer
from sundog.actors.messages import CeaseFetch, Done, FetchKv, Refused


class Flow:
    """A transfer under way; `left_tokens` as of the last change of any rate."""

    __slots__ = ("left_tokens", "rate", "source", "target")

    def __init__(self, source: int, target: int, num_tokens: float) -> None:
        self.source, self.target = source, target
        self.left_tokens = num_tokens
        self.rate = 0.0


class KvMoved(NamedTuple):
    """A transfer that is done; `begin_s` is when it was asked for."""

    request_id: str
    source: int
    target: int
    begin_s: float
    end_s: float
    num_tokens: int


def share(flows: Sequence[Flow], tokens_per_s: Sequence[float]) -> None:
    """Give each flow its max-min fair rate in tokens a second. O(links x flows)

    A replica sends `tokens_per_s` at most, and receives as many.
    """
    rooms: dict[tuple[bool, int], float] = {}
    users: dict[tuple[bool, int], list[Flow]] = {}
    for flow in flows:
        for link in ((True, flow.source), (False, flow.target)):
            rooms[link] = tokens_per_s[link[1]]
            users.setdefault(link, []).append(flow)
    unset = dict.fromkeys(map(id, flows))
    while unset:
        link = min(rooms, key=lambda each: (rooms[each] / len(users[each]), each))
        rate = rooms[link] / len(users[link])
        for flow in users[link]:
            flow.rate = rate
            del unset[id(flow)]
            for other in ((True, flow.source), (False, flow.target)):
                if other != link:
                    users[other].remove(flow)
                    rooms[other] = max(rooms[other] - rate, 0.0) if rate < inf else inf
                    if not users[other]:
                        del users[other], rooms[other]
        del users[link], rooms[link]


class ChangeOfRates:
    """The links tell themselves that a transfer begins, its latency over, or that one is done."""

    __slots__ = ("begins",)

    def __init__(self, begins: str | None = None) -> None:
        self.begins = begins


class KvLinks(Actor[FetchKv | CeaseFetch | ChangeOfRates]):
    """Moves blocks for a Router, each transfer after a latency.

    `tokens_per_s` has what each replica can send, and receive, in tokens a second. `is_lost` says of a
    request whether its transfer gets lost, of which the Router hears when it would have been done.
    """

    def __init__(
        self,
        tokens_per_s: Sequence[float],
        latency_s: float = 0.0,
        is_lost: Callable[[str], bool] = lambda request_id: False,
    ) -> None:
        super().__init__("kv-links")
        self._full_rate = list(tokens_per_s)
        self._rate = list(tokens_per_s)
        """The tokens a second that each replica can send and receive now."""
        self._latency_s, self.is_lost = latency_s, is_lost
        self._replies: dict[str, Reply[Done | Refused]] = {}
        self._asked: dict[str, tuple[FetchKv, float]] = {}
        """The transfers that are not done, each with the time at which it was asked for."""
        self._coming: dict[str, tuple[FetchKv, Timer]] = {}
        """Transfers whose latency is not over."""
        self._dead: set[int] = set()
        """Replicas whose engines are dead, noticed or not."""
        self._flows: dict[str, Flow] = {}
        self._since_s = 0.0
        self._timer: Timer | None = None
        self._ends_next: str | None = None
        self.moved: list[KvMoved] = []
        """Transfers that are done, in order of their ends."""

    @property
    def idle(self) -> bool:
        return not self._replies

    def handle(self, message: FetchKv | CeaseFetch | ChangeOfRates) -> Handled:
        match message:
            case FetchKv():
                reply: Reply[Done | Refused] = Reply()
                self._replies[message.request_id] = reply
                self._asked[message.request_id] = message, self.clock.now_s()
                if self._latency_s:
                    begin = ChangeOfRates(message.request_id)
                    timer = self.schedule(self.clock.now_s() + self._latency_s, Event.ARRIVAL, begin)
                    self._coming[message.request_id] = (message, timer)
                else:
                    self._begin(message)
                return answer(message, reply)
            case CeaseFetch():
                self._stop(message.request_id)
            case ChangeOfRates():
                if message.begins is None:
                    self._end()
                else:
                    self._begin(self._coming.pop(message.begins)[0])
            case _:
                self.unknown(message)
        return None

    def slow_down(self, replica: int, factor: float) -> None:
        """Let a replica send and receive at this part of its rate from now on; 0 cuts it off."""
        self._advance()
        self._rate[replica] = self._full_rate[replica] * factor
        self._share()

    def cut_off(self, replica: int) -> None:
        """An engine is dead: what is read from it fails, and what it reads comes no further."""
        self._dead.add(replica)
        for name, (fetch, _) in list(self._asked.items()):
            if replica in (fetch.source, fetch.target) and name not in self._coming:
                self._break(fetch)

    def restore(self, replica: int) -> None:
        """Let a replica send and receive again: its engine is up."""
        self._dead.discard(replica)

    def _break(self, fetch: FetchKv) -> None:
        name = fetch.request_id
        if self._flows.pop(name, None) is not None:
            self._advance()
            self._share()
        if fetch.source in self._dead:
            del self._asked[name]
            self._replies.pop(name).set(Refused(f"the engine of replica {fetch.source} is dead"))

    def _begin(self, fetch: FetchKv) -> None:
        if fetch.source in self._dead or fetch.target in self._dead:
            return self._break(fetch)
        self._advance()
        self._flows[fetch.request_id] = Flow(fetch.source, fetch.target, fetch.num_tokens)
        self._share()

    def _stop(self, name: str) -> None:
        self._replies.pop(name, None)
        self._asked.pop(name, None)
        if (coming := self._coming.pop(name, None)) is not None:
            coming[1].stop()
        elif name in self._flows:
            self._advance()
            del self._flows[name]
            self._share()

    def _end(self) -> None:
        name = self._ends_next
        assert name is not None
        self._advance()
        del self._flows[name]
        self._timer = None
        self._share()
        lost = self.is_lost(name)
        fetch, begin_s = self._asked.pop(name)
        if not lost:
            ends = (begin_s, self._since_s, fetch.num_tokens)
            self.moved.append(KvMoved(name, fetch.source, fetch.target, *ends))
        self._replies.pop(name).set(Refused("the transfer was lost") if lost else Done())

    def _advance(self) -> None:
        now_s = self.clock.now_s()
        for flow in self._flows.values() if now_s > self._since_s else ():
            flow.left_tokens = max(flow.left_tokens - flow.rate * (now_s - self._since_s), 0.0)
        self._since_s = now_s

    def _share(self) -> None:
        share(list(self._flows.values()), self._rate)
        if self._timer is not None:
            self._timer.stop()
        self._timer, self._ends_next = None, None
        first_s = inf
        for name, flow in self._flows.items():
            takes_s = flow.left_tokens / flow.rate if flow.rate > 0 else inf
            if takes_s < first_s:
                first_s, self._ends_next = takes_s, name
        if self._ends_next is not None:
            self._timer = self.schedule(self._since_s + first_s, Event.ARRIVAL, ChangeOfRates())
