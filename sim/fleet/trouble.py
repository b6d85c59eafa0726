"""Faults of a fleet during a run: each at its time, in order, with its effects.

Faults are intervals, which may overlap. An engine is down as long as any fault keeps it down; factors of
stragglers multiply, and so do the parts of slow links; transfers are lost by each rate independently.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import nan, prod
from typing import Literal

from sundog.actors.core.chance import drawn, is_lost
from sundog.actors.core.config import ConfigError
from sundog.actors.engine.backend import Backend
from sundog.actors.front.async_llm import FromClients
from sundog.actors.kernel.actor import Ref
from sundog.actors.kernel.clock import Event, now_s, sleep_until
from sundog.actors.messages import Cancel
from sundog.sim.client import Client
from sundog.sim.cost.composed import ScaledCost
from sundog.sim.fleet.faults import Cancellations, DeadEngine, LostTransfer, PlannedFault, SlowLink, Straggler
from sundog.sim.fleet.links import KvLinks
from sundog.sim.fleet.mortal import MortalBackend


@dataclass(slots=True)
class Befallen:
    """Fault that has happened; `num_cancelled` is the number of clients that left.

    At `noticed_s` the loss was noticed, and the fleet began to avoid the engine; NaN if the engine was
    already down.
    """

    fault: PlannedFault
    at_s: float
    noticed_s: float
    num_cancelled: int = 0


@dataclass(slots=True)
class EngineLife:
    """State of a replica's engine, as far as faults change it; `dead` means killed, and the crash not yet
    noticed.
    """

    state: Literal["up", "dead", "starting"] = "starting"
    up_s: float = 0.0
    """Time in seconds at which the last of its faults so far ends."""
    backend: MortalBackend | None = None


@dataclass(slots=True)
class Trouble:
    """Driver of a run's faults; `new_inner` makes a backend for a restarted replica."""

    faults: Sequence[PlannedFault]
    seed: int
    new_inner: Callable[[int], Backend]
    paces: Sequence[ScaledCost]
    links: KvLinks | None
    befallen: list[Befallen] = field(default_factory=list)
    _lives: dict[int, EngineLife] = field(default_factory=dict)
    _factors: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Slowdown factors of the current stragglers, by replica."""
    _parts: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Shares of bandwidth that the current slow links leave, by replica."""
    _dead: dict[int, tuple[EngineLife, Befallen]] = field(default_factory=dict)
    """Engines whose crash has not been noticed, by the number of the fault that killed each."""
    _loss_rates: list[float] = field(default_factory=list)

    def new_backend(self, replica: int) -> MortalBackend:
        """Make the first backend of a replica, or a later one that starts as soon as faults allow."""
        from sundog.sim.backend import CostBackend

        inner = self.new_inner(replica)
        if not isinstance(inner, CostBackend):
            raise ConfigError("faults need engines of one stage: leave --pipeline-parallel-size at 1")
        life = self._lives.setdefault(replica, EngineLife())
        life.backend = MortalBackend(inner, lambda: life.up_s, partial(self._is_up, replica, life))
        return life.backend

    def _is_up(self, replica: int, life: EngineLife) -> None:
        life.state = "up"
        if self.links is not None:
            self.links.restore(replica)

    async def drive(self, llm: Ref[FromClients], client: Client) -> None:
        """Apply every fault at its time."""
        for at_s, _, act in sorted(self._acts(llm, client), key=lambda each: each[:2]):
            await sleep_until(at_s, Event.TIMEOUT, "faults")
            act()

    def _acts(self, llm: Ref[FromClients], client: Client) -> list[tuple[float, int, Callable[[], None]]]:
        acts: list[tuple[float, int, Callable[[], None]]] = []
        for number, fault in enumerate(self.faults):
            match fault:
                case DeadEngine():
                    acts.append((fault.at_s, number, partial(self._kill, fault, number)))
                    if fault.notice_s:
                        at_s = fault.at_s + fault.notice_s
                        acts.append((at_s, number, partial(self._notice, number)))
                case Straggler():
                    until_s = fault.at_s + fault.for_s
                    acts.append((fault.at_s, number, partial(self._slow, fault, begins=True)))
                    acts.append((until_s, number, partial(self._slow, fault, begins=False)))
                case SlowLink():
                    until_s = fault.at_s + fault.for_s
                    acts.append((fault.at_s, number, partial(self._throttle, fault, begins=True)))
                    acts.append((until_s, number, partial(self._throttle, fault, begins=False)))
                case LostTransfer():
                    acts.append((fault.at_s, number, partial(self._lose, fault)))
                    acts.append((fault.at_s + fault.for_s, number, partial(self._lose_no_more, fault)))
                case Cancellations():
                    acts.append((fault.at_s, number, partial(self._cancel, fault, llm, client)))
                case _:
                    pass
        return acts

    def is_lost(self, request_id: str) -> bool:
        """Return whether a transfer that ends now is lost."""
        return is_lost(self.seed, request_id, now_s(), self._loss_rates)

    def _note(self, fault: PlannedFault, num_cancelled: int = 0) -> None:
        self.befallen.append(Befallen(fault, now_s(), now_s(), num_cancelled))

    def _kill(self, fault: DeadEngine, number: int) -> None:
        life = self._lives[fault.replica]
        life.up_s = max(life.up_s, now_s() + fault.down_s)
        if life.state != "up":  # it stays down for longer
            self.befallen.append(Befallen(fault, now_s(), nan))
            return
        assert life.backend is not None
        life.state = "dead"
        life.backend.kill()
        self._dead[number] = life, Befallen(fault, now_s(), nan)
        if self.links is not None:
            self.links.cut_off(fault.replica)
        if not fault.notice_s:
            self._notice(number)

    def _notice(self, number: int) -> None:
        if (found := self._dead.pop(number, None)) is None:
            return
        life, befallen = found
        assert life.backend is not None
        life.state, befallen.noticed_s = "starting", now_s()
        if life.backend.notice():
            self.befallen.append(befallen)

    def _slow(self, fault: Straggler, *, begins: bool) -> None:
        factors, pace = self._factors[fault.replica], self.paces[fault.replica]
        (factors.append if begins else factors.remove)(fault.factor)

        def change() -> None:
            pace.factor = prod(factors, start=1.0)

        backend = self._lives[fault.replica].backend
        assert backend is not None
        backend.change_pace(change)
        if begins:
            self._note(fault)

    def _throttle(self, fault: SlowLink, *, begins: bool) -> None:
        parts = self._parts[fault.replica]
        (parts.append if begins else parts.remove)(fault.part)
        if self.links is not None:
            self.links.slow_down(fault.replica, prod(parts, start=1.0))
        if begins:
            self._note(fault)

    def _lose(self, fault: LostTransfer) -> None:
        self._loss_rates.append(fault.rate)
        self._note(fault)

    def _lose_no_more(self, fault: LostTransfer) -> None:
        self._loss_rates.remove(fault.rate)

    def _cancel(self, fault: Cancellations, llm: Ref[FromClients], client: Client) -> None:
        key = ["cancel", f"{fault.at_s}"]
        leaving = [name for name in client.unfinished if drawn(self.seed, [*key, name]) < fault.rate]
        for name in leaving:
            llm.tell(Cancel(name))
        self._note(fault, len(leaving))
