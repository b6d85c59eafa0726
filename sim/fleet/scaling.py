"""A fleet that grows and shrinks while it runs: its scaler is asked at fixed intervals.

Replicas that are not wanted are drained, as `POST /drain` does, and off when their last request has ended;
those that are ordered serve `start_s` later, with an empty cache. The last to be ordered are the first to go.
A GPU is paid for from its order until its replica is off.
"""

from collections.abc import Callable
from dataclasses import dataclass

from actors.core.scalers import ScaledFleet, Scaler
from actors.front.async_llm import FromClients
from actors.kernel.actor import Actor, Ref
from actors.kernel.clock import Event, now_s, sleep_until
from actors.messages import Drain, EngineDown, Heard, Refused, ResetPrefixCache, StepOutput, Submit, Unserved


@dataclass(frozen=True, slots=True)
class Scaling:
    """The terms of a fleet that scales; it begins with `least` replicas."""

    scaler: Scaler
    least: int = 1
    every_s: float = 15.0
    start_s: float = 60.0


class FleetWatch(Actor[Heard]):
    """The listener that counts what a scaler is told."""

    def __init__(self, num_replicas: int) -> None:
        super().__init__("fleet-watch")
        self._arrived: dict[str, float] = {}
        """Unfinished requests that have no token yet."""
        self.num_unfinished = self.arrivals = 0
        self.ttfts_s: list[float] = []
        self.running = [0] * num_replicas
        self._busy_s = [0.0] * num_replicas
        self._since_s: list[float | None] = [None] * num_replicas
        """The times since which each computes; in a run of steps, too, of which only the end is told."""

    def handle(self, message: Heard) -> None:
        match message:
            case Submit():
                self._arrived[message.request_id] = message.arrival_s
                self.arrivals += 1
                self.num_unfinished += 1
            case StepOutput():
                self._step(message)
            case EngineDown():
                self.running[message.replica] = 0
                self._fall_silent(message.replica, self.clock.now_s())
            case Unserved():
                self.num_unfinished -= len(message.request_ids)
            case _:
                pass

    def busy_s(self, until_s: float) -> float:
        """Return the seconds for which replicas have computed, all together."""
        open_s = [until_s - since_s for since_s in self._since_s if since_s is not None]
        return sum(self._busy_s) + sum(open_s)

    def _fall_silent(self, replica: int, time_s: float) -> None:
        since_s, self._since_s[replica] = self._since_s[replica], None
        if since_s is not None:
            self._busy_s[replica] += max(time_s - since_s, 0.0)

    def _step(self, output: StepOutput) -> None:
        replica, ends = output.replica, output.end_times_s
        self.running[replica] = output.num_running
        if ends and self._since_s[replica] is None:
            self._since_s[replica] = output.start_s
        if not (output.num_running or output.num_waiting):
            self._fall_silent(replica, ends[-1] if ends else output.start_s)
        for chunk in output.batch.chunks:
            if chunk.samples and (arrival_s := self._arrived.pop(chunk.request_id, None)) is not None:
                self.ttfts_s.append(ends[0] - arrival_s)
        for finish in output.finished:
            if finish.reason == "handed":
                continue
            self._arrived.pop(finish.request_id, None)
            self.num_unfinished -= 1


class ScaledReplica:
    """A replica of a fleet that scales; `is_wanted` from its order until it is drained."""

    __slots__ = ("is_wanted", "paid_since_s", "up_s")

    def __init__(self) -> None:
        self.is_wanted = False
        self.paid_since_s: float | None = None
        """None while it is off."""
        self.up_s = 0.0
        """The time at which it serves, once it is wanted."""


class Autoscaler:
    """Drives the number of replicas of one run, and keeps what that came to."""

    def __init__(
        self,
        scaling: Scaling,
        num_replicas: int,
        on_change: Callable[[float, int, float], None] = lambda time_s, wanted, paid_s: None,
    ) -> None:
        """`on_change` is told when how many are wanted, and the seconds that replicas were paid by then."""
        self._scaling, self._on_change = scaling, on_change
        self.watch = FleetWatch(num_replicas)
        self._replicas = [ScaledReplica() for _ in range(num_replicas)]
        self._history: list[int] = []
        self._asked: list[tuple[float, int]] = []
        self._busy_s = 0.0
        self._paid_s = 0.0
        self.changes: list[tuple[float, int]] = []
        """The times at which the number of wanted replicas changed, with the new numbers."""
        self.num_starts = 0

    def replica_seconds(self, until_s: float) -> float:
        """Return the seconds for which replicas were paid, those that still are up to an instant."""
        open_s = [
            max(until_s - each.paid_since_s, 0.0) for each in self._replicas if each.paid_since_s is not None
        ]
        return self._paid_s + sum(open_s)

    async def drive(self, llm: Ref[FromClients]) -> None:
        """Ask the scaler again and again, and do as it says."""
        least, every_s = self._scaling.least, self._scaling.every_s
        for number, replica in enumerate(self._replicas):
            if number < least:
                replica.is_wanted, replica.paid_since_s = True, now_s()
            else:
                llm.request(Drain(number))
        self._changed(least)
        next_s = now_s()
        while True:
            next_s += every_s
            await sleep_until(next_s, Event.TIMEOUT, "autoscaler")
            self._serve(llm)
            fleet = self._facts()
            wanted = min(max(self._scaling.scaler.want(fleet), least), len(self._replicas))
            self._asked.append((fleet.now_s, wanted))
            await self._scale(wanted, llm)

    def _changed(self, wanted: int) -> None:
        self.changes.append((now_s(), wanted))
        self._on_change(now_s(), wanted, self.replica_seconds(now_s()))

    def _wanted(self) -> list[int]:
        return [number for number, each in enumerate(self._replicas) if each.is_wanted]

    def _facts(self) -> ScaledFleet:
        """Return what has happened since the last question."""
        watch, time_s = self.watch, now_s()
        wanted = self._wanted()
        num_up = sum(self._replicas[number].up_s <= time_s for number in wanted)
        busy_s, arrivals = watch.busy_s(time_s), watch.arrivals
        num_running = sum(watch.running)
        fleet = ScaledFleet(
            time_s,
            self._scaling.every_s,
            num_up,
            len(wanted) - num_up,
            num_running,
            max(watch.num_unfinished - num_running, 0),
            min((busy_s - self._busy_s) / (self._scaling.every_s * max(num_up, 1)), 1.0),
            arrivals,
            tuple(watch.ttfts_s),
            tuple(self._history),
            tuple(self._asked),
            self._scaling.start_s,
        )
        self._busy_s, watch.arrivals, watch.ttfts_s = busy_s, 0, []
        self._history.append(arrivals)
        return fleet

    async def _scale(self, wanted: int, llm: Ref[FromClients]) -> None:
        now = self._wanted()
        for number in [n for n, each in enumerate(self._replicas) if not each.is_wanted][: wanted - len(now)]:
            self._order(number)
        for number in now[wanted:]:
            self._release(number, llm)
        if wanted != len(now):
            self._changed(wanted)
        await self._sleep_until_up(llm)

    def _order(self, number: int) -> None:
        replica = self._replicas[number]
        replica.is_wanted, self.num_starts = True, self.num_starts + 1
        # One that still drains has all that a start would bring.
        replica.up_s = now_s() if replica.paid_since_s is not None else now_s() + self._scaling.start_s
        replica.paid_since_s = replica.paid_since_s if replica.paid_since_s is not None else now_s()

    async def _sleep_until_up(self, llm: Ref[FromClients]) -> None:
        """Let replicas serve that come up before the next question."""
        self._serve(llm)
        next_s = (self._asked[-1][0] if self._asked else 0.0) + self._scaling.every_s
        for up_s in sorted({self._replicas[number].up_s for number in self._wanted()}):
            if now_s() < up_s < next_s:
                await sleep_until(up_s, Event.TIMEOUT, "autoscaler")
                self._serve(llm)

    def _serve(self, llm: Ref[FromClients]) -> None:
        """Send requests to wanted replicas that have come up."""
        for number in self._wanted():
            replica = self._replicas[number]
            if 0 < replica.up_s <= now_s():
                replica.up_s = 0.0
                llm.request(Drain(number, is_draining=False))

    def _release(self, number: int, llm: Ref[FromClients]) -> None:
        """Drain a replica; it is off when nothing is left there."""
        replica = self._replicas[number]
        replica.is_wanted, replica.up_s = False, 0.0

        def drained(answer: object, error: BaseException | None) -> None:
            if error is not None or isinstance(answer, Refused) or replica.is_wanted:
                return
            if replica.paid_since_s is not None:
                self._paid_s += now_s() - replica.paid_since_s
                replica.paid_since_s = None
                llm.request(ResetPrefixCache(replica=number, begins_anew=True))

        llm.request(Drain(number)).then(drained)
