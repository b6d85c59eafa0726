"""Autoscaling of a fleet during a run: its scaler is called at fixed intervals.

Surplus replicas are drained, like `POST /drain`, and off when their last request has ended; ordered ones
serve `start_s` later, with an empty cache. The last ordered are the first to go. A GPU is paid for from its
order until its replica is off. Pools may have scalers of their own, each for its own requests; they are
called at the same times, in order.

Laws: the starts of a pool are the rises of its wanted number; while nothing starts, as many replicas serve,
or are down by a fault, as are wanted; a call costs O(replicas).
"""

from collections.abc import Callable, Sequence

from sundog.actors.core.autoscaling import Controller
from sundog.actors.core.records import dataclass
from sundog.actors.core.routers.fleet_state import Role
from sundog.actors.core.scalers import FirstItems, ScaledFleet, Scaler
from sundog.actors.front.async_llm import FromClients
from sundog.actors.kernel.actor import Ref
from sundog.actors.kernel.clock import Event, now_s, sleep_until
from sundog.actors.messages import Drain, Refused, ResetPrefixCache
from sundog.sim.fleet.watch import FleetWatch


@dataclass(frozen=True, slots=True)
class Scaling:
    """Terms of a fleet, or of one `pool` of it, that scales; it begins with `least` replicas."""

    scaler: Scaler
    least: int = 1
    every_s: float = 15.0
    start_s: float = 60.0
    pool: str | None = None


class ScaledReplica:
    """Replica of a fleet that scales; `is_wanted` from its order until its drain."""

    __slots__ = ("busy_s", "is_wanted", "paid_since_s", "up_s")

    def __init__(self) -> None:
        self.is_wanted = False
        self.paid_since_s: float | None = None
        """Time of its order, in seconds; None while it is off."""
        self.up_s: float | None = None
        """Time at which it will serve, while it starts."""
        self.busy_s = 0.0
        """Computing seconds at the scaler's last call, or when it came up."""


class ScaledPool:
    """Replicas under one scaler, and their totals."""

    def __init__(self, scaling: Scaling, number: int, members: Sequence[int], watch: FleetWatch) -> None:
        self.scaling, self._number, self._watch = scaling, number, watch
        self.replicas = {member: ScaledReplica() for member in members}
        self._controller = Controller(scaling.scaler, scaling.least, len(members))
        self._history: list[int] = []
        self._asked_s = 0.0
        self._paid_s = 0.0
        self._paid: list[tuple[float, float]] = []
        """Paid spans of replicas that are off again, in seconds."""
        self.changes: list[tuple[float, int]] = []
        """Times at which the number of wanted replicas changed, with the new numbers."""
        self.num_starts = 0

    def replica_seconds(self, until_s: float) -> float:
        """Return the paid seconds of replicas, current ones up to a time."""
        open_s = [
            max(until_s - each.paid_since_s, 0.0)
            for each in self.replicas.values()
            if each.paid_since_s is not None
        ]
        return self._paid_s + sum(open_s)

    def seconds_between(self, begin_s: float, end_s: float) -> float:
        """Return the paid seconds of replicas between two times. O(starts)"""
        since = [each.paid_since_s for each in self.replicas.values() if each.paid_since_s is not None]
        spans = [*self._paid, *((since_s, end_s) for since_s in since)]
        return sum(max(min(to_s, end_s) - max(from_s, begin_s), 0.0) for from_s, to_s in spans)

    def begin(self, llm: Ref[FromClients]) -> None:
        """Drain all replicas except the fewest allowed."""
        self._asked_s = now_s()
        for place, (number, replica) in enumerate(self.replicas.items()):
            if place < self.scaling.least:
                replica.is_wanted, replica.paid_since_s = True, now_s()
            else:
                llm.request(Drain(number))
        self.changes.append((now_s(), self.scaling.least))

    def ask(self, llm: Ref[FromClients]) -> bool:
        """Call the scaler and apply its answer; return whether that changes the fleet."""
        wanted = self._controller.decide(self._facts())
        now = self._wanted()
        idle = [number for number, each in self.replicas.items() if not each.is_wanted]
        for number in idle[: max(wanted - len(now), 0)]:
            self._order(number)
        for number in now[wanted:]:
            self._release(number, llm)
        if wanted != len(now):
            self.changes.append((now_s(), wanted))
        return wanted != len(now)

    def next_up_s(self) -> float | None:
        """Return the time at which the next starting replica will serve."""
        return min((each.up_s for each in self.replicas.values() if each.up_s is not None), default=None)

    def serve(self, llm: Ref[FromClients]) -> None:
        """Send requests to wanted replicas that have come up."""
        for number, replica in self.replicas.items():
            if replica.up_s is not None and replica.up_s <= now_s():
                replica.up_s = None
                replica.busy_s = self._watch.busy_s(number, now_s())
                llm.request(Drain(number, is_draining=False))

    def _wanted(self) -> list[int]:
        return [number for number, each in self.replicas.items() if each.is_wanted]

    def _facts(self) -> ScaledFleet:
        watch, time_s = self._watch, now_s()
        wanted, num_up, busy_s, span_s = 0, 0, 0.0, time_s - self._asked_s
        for number, replica in self.replicas.items():
            busy_until_s = watch.busy_s(number, time_s)
            if replica.is_wanted:
                wanted += 1
                if replica.up_s is None and not watch.is_down[number]:
                    num_up += 1
                    busy_s += busy_until_s - replica.busy_s
            replica.busy_s = busy_until_s
        num_running = sum(watch.running[number] for number in self.replicas)
        arrivals, ttfts_s = watch.since_last(self._number)
        fleet = ScaledFleet(
            now_s=time_s,
            every_s=self.scaling.every_s,
            num_up=num_up,
            num_starting=wanted - num_up,
            num_running=num_running,
            num_waiting=max(watch.num_unfinished(self._number) - num_running, 0),
            busy=min(busy_s / (span_s * num_up), 1.0) if num_up else 0.0,
            arrivals=arrivals,
            ttfts_s=ttfts_s,
            history=FirstItems(self._history),
            asked=self._controller.asked,
            start_s=self.scaling.start_s,
        )
        self._asked_s = time_s
        self._history.append(arrivals)
        return fleet

    def _order(self, number: int) -> None:
        replica = self.replicas[number]
        replica.is_wanted, self.num_starts = True, self.num_starts + 1
        # One that still drains has all that a start would bring.
        replica.up_s = now_s() if replica.paid_since_s is not None else now_s() + self.scaling.start_s
        replica.paid_since_s = replica.paid_since_s if replica.paid_since_s is not None else now_s()

    def _release(self, number: int, llm: Ref[FromClients]) -> None:
        replica = self.replicas[number]
        replica.is_wanted, replica.up_s = False, None

        def drained(answer: object, error: BaseException | None) -> None:
            if error is not None or isinstance(answer, Refused) or replica.is_wanted:
                return
            if replica.paid_since_s is not None:
                self._paid_s += now_s() - replica.paid_since_s
                self._paid.append((replica.paid_since_s, now_s()))
                replica.paid_since_s = None
                llm.request(ResetPrefixCache(replica=number, begins_anew=True))

        llm.request(Drain(number)).then(drained)


class Autoscaler:
    """Driver of the numbers of replicas of one run."""

    def __init__(
        self,
        scalings: Sequence[Scaling],
        pools: Sequence[str],
        roles: Sequence[Role],
        on_change: Callable[[float, int, float], None] = lambda time_s, wanted, paid_s: None,
    ) -> None:
        """`pools` and `roles` have the pool and the role of each replica; a Scaling without a pool has all.

        `on_change` is called with the wanted number when it changes, and the seconds paid by then.
        """
        self._on_change = on_change
        self._every_s = scalings[0].every_s
        is_whole = scalings[0].pool is None
        names = list(dict.fromkeys(pools))
        numbers = [0 if is_whole else names.index(name) for name in pools]
        self.watch = FleetWatch(numbers, roles)
        self.changes: list[tuple[float, int]] = []
        """Times at which the number of wanted replicas changed, with the new numbers, of all pools."""
        self.pools: list[ScaledPool] = []
        for scaling in scalings:
            number = 0 if scaling.pool is None else names.index(scaling.pool)
            members = [replica for replica, its in enumerate(numbers) if its == number]
            self.pools.append(ScaledPool(scaling, number, members, self.watch))

    async def drive(self, llm: Ref[FromClients]) -> None:
        """Call the scalers periodically, and apply their answers."""
        for pool in self.pools:
            pool.begin(llm)
        self._changed()
        next_s = now_s()
        while True:
            next_s += self._every_s
            await self._serve_until(next_s, llm)
            changes = [pool.ask(llm) for pool in self.pools]
            self._serve(llm)
            if any(changes):
                self._changed()

    def _changed(self) -> None:
        wanted = sum(pool.changes[-1][1] for pool in self.pools)
        if not self.changes or wanted != self.changes[-1][1]:
            self.changes.append((now_s(), wanted))
        self._on_change(now_s(), wanted, sum(pool.replica_seconds(now_s()) for pool in self.pools))

    async def _serve_until(self, time_s: float, llm: Ref[FromClients]) -> None:
        while True:
            coming_s = [up_s for pool in self.pools if (up_s := pool.next_up_s()) is not None]
            next_s = min([*coming_s, time_s])
            await sleep_until(next_s, Event.TIMEOUT, "autoscaler")
            self._serve(llm)
            if next_s >= time_s:
                return

    def _serve(self, llm: Ref[FromClients]) -> None:
        for pool in self.pools:
            pool.serve(llm)
