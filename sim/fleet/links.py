"""Links that carry keys and values between engines: bandwidth, latency, and sharing.

Each rank of an engine has a link of its own, as with a NIC beside each GPU, and all ranks move their part of
a request at once: so an engine has a rate in tokens a second, each way. Current transfers share what each
engine sends and receives by max-min fairness, as flows in a network without loss do (Bertsekas, Gallager,
"Data Networks", 6.5.2): all rates grow alike until a link is full, and the transfers over it stay at that
rate.

Law: each transfer has a rate that no link on its path could raise without slowing a transfer that is no
faster. Blocks go whole, and are usable when the last has arrived.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from sundog.actors.core.records import dataclass
from sundog.actors.kernel.actor import Actor, Handled, Reply, answer
from sundog.actors.kernel.clock import ARRIVAL, Timer
from sundog.actors.messages import CeaseFetch, Done, FetchKv, Refused


class Flow:
    """Transfer in progress; `left_tokens` is as of the last change of any rate."""

    __slots__ = ("left_tokens", "rate", "source", "target")

    def __init__(self, source: int, target: int, num_tokens: float) -> None:
        self.source, self.target = source, target
        self.left_tokens = num_tokens
        self.rate = 0.0


@dataclass(slots=True)
class KvMoved:
    """Finished transfer; `begin_s` is the time of its request."""

    request_id: str
    source: int
    target: int
    begin_s: float
    end_s: float
    num_tokens: int


def share(flows: Sequence[Flow], tokens_per_s: Sequence[float]) -> None:
    """Set each flow's max-min fair rate in tokens a second. O(links x flows)

    A replica sends at most `tokens_per_s`, and receives as many.
    """
    if len(flows) == 1 or _share_none(flows):  # as is most often so
        for flow in flows:
            flow.rate = min(tokens_per_s[flow.source], tokens_per_s[flow.target])
        return
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


def _share_none(flows: Sequence[Flow]) -> bool:
    """Return whether no two flows share a link."""
    return len({flow.source for flow in flows}) == len({flow.target for flow in flows}) == len(flows)


class ChangeOfRates:
    """Message of the links to themselves: the latency of a transfer is over, or its last block has
    arrived.
    """

    __slots__ = ("begins",)

    def __init__(self, begins: str | None = None) -> None:
        self.begins = begins


LAST_BLOCK: Final = ChangeOfRates()
"""The last block of the transfer that ends next has arrived."""


class Transfer:
    """Unfinished transfer, with the time of its request and the reply to it."""

    __slots__ = ("begin_s", "fetch", "reply")

    def __init__(self, fetch: FetchKv, begin_s: float, reply: Reply[Done | Refused]) -> None:
        self.fetch, self.begin_s, self.reply = fetch, begin_s, reply


class KvLinks(Actor[FetchKv | CeaseFetch | ChangeOfRates]):
    """Actor that copies blocks for a Router, each transfer after a latency.

    `tokens_per_s` is the rate at which each replica can send, and can receive. `is_lost` returns whether a
    request's transfer is lost (None: none is); the Router learns of it when the transfer would have ended.
    """

    def __init__(
        self,
        tokens_per_s: Sequence[float],
        latency_s: float = 0.0,
        is_lost: Callable[[str], bool] | None = None,
    ) -> None:
        super().__init__("kv-links")
        self._full_rate = list(tokens_per_s)
        self._rate = list(tokens_per_s)
        """Current rate of each replica for sending and receiving, in tokens a second."""
        self._latency_s, self.is_lost = latency_s, is_lost
        self._transfers: dict[str, Transfer] = {}
        self._coming: dict[str, tuple[FetchKv, Timer]] = {}
        """Transfers within their latency."""
        self._dead: set[int] = set()
        """Replicas with dead engines, noticed or not."""
        self._flows: dict[str, Flow] = {}
        self._since_s = 0.0
        self._timer: Timer | None = None
        self._ends_next: str | None = None
        self.moved: list[KvMoved] = []
        """Finished transfers in order of their ends."""

    @property
    def idle(self) -> bool:
        return not self._transfers

    def handle(self, message: FetchKv | CeaseFetch | ChangeOfRates) -> Handled:
        match message:
            case FetchKv():
                reply: Reply[Done | Refused] = Reply()
                transfer = Transfer(message, (self._clock or self.clock).now_s(), reply)
                self._transfers[message.request_id] = transfer
                if self._latency_s:
                    begin = ChangeOfRates(message.request_id)
                    timer = self.schedule(self.clock.now_s() + self._latency_s, ARRIVAL, begin)
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
        """Set the rate of a replica to this share of its full rate; 0 cuts it off."""
        self._advance()
        self._rate[replica] = self._full_rate[replica] * factor
        self._share()

    def cut_off(self, replica: int) -> None:
        """Stop the transfers of a dead engine: reads from it fail, and its own reads stop."""
        self._dead.add(replica)
        for name, transfer in list(self._transfers.items()):
            fetch = transfer.fetch
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
            dead = Refused(f"the engine of replica {fetch.source} is dead")
            self._transfers.pop(name).reply.set(dead)

    def _begin(self, fetch: FetchKv) -> None:
        if self._dead and (fetch.source in self._dead or fetch.target in self._dead):
            return self._break(fetch)
        self._advance()
        self._flows[fetch.request_id] = Flow(fetch.source, fetch.target, fetch.num_tokens)
        self._share()

    def _stop(self, name: str) -> None:
        self._transfers.pop(name, None)
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
        lost = self.is_lost is not None and self.is_lost(name)
        transfer = self._transfers.pop(name)
        if lost:
            return transfer.reply.set(Refused("the transfer was lost"))
        fetch = transfer.fetch
        moved = KvMoved(
            name,
            fetch.source,
            fetch.target,
            begin_s=transfer.begin_s,
            end_s=self._since_s,
            num_tokens=fetch.num_tokens,
        )
        self.moved.append(moved)
        transfer.reply.set(Done())

    def _advance(self) -> None:
        now_s, since_s = (self._clock or self.clock).now_s(), self._since_s
        if now_s > since_s:
            for flow in self._flows.values():
                flow.left_tokens = max(flow.left_tokens - flow.rate * (now_s - since_s), 0.0)
            self._since_s = now_s

    def _share(self) -> None:
        if self._timer is not None:
            self._timer.stop()
        self._timer, self._ends_next = None, None
        if not self._flows:
            return
        share(list(self._flows.values()), self._rate)
        first_s = inf
        for name, flow in self._flows.items():
            takes_s = flow.left_tokens / flow.rate if flow.rate > 0 else inf
            if takes_s < first_s:
                first_s, self._ends_next = takes_s, name
        if self._ends_next is not None:
            self._timer = self.schedule(self._since_s + first_s, ARRIVAL, LAST_BLOCK)
