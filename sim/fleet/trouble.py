"""Faults that befall a fleet while it runs: each at its instant, in order, with what came of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from actors.core.chance import drawn, is_lost
from actors.core.config import ConfigError
from actors.engine.backend import Backend
from actors.front.async_llm import FromClients
from actors.kernel.actor import Ref
from actors.kernel.clock import Event, now_s, sleep_until
from actors.messages import Cancel
from sim.client import Client
from sim.cost.composed import ScaledCost
from sim.fleet.faults import Cancellations, DeadEngine, LostTransfer, PlannedFault, SlowLink, Straggler
from sim.fleet.links import KvLinks
from sim.fleet.mortal import MortalBackend


@dataclass(slots=True)
class Befallen:
    """A fault that has happened; `num_cancelled` are the clients that left.

    It was noticed at `noticed_s`, from when on the fleet does without the engine.
    """

    fault: PlannedFault
    at_s: float
    noticed_s: float
    num_cancelled: int = 0


@dataclass(slots=True)
class Trouble:
    """Drives the faults of one run; `new_inner` makes a backend for a replica that starts again."""

    faults: Sequence[PlannedFault]
    seed: int
    new_inner: Callable[[int], Backend]
    paces: Sequence[ScaledCost]
    links: KvLinks | None
    befallen: list[Befallen] = field(default_factory=list)
    _mortals: dict[int, MortalBackend] = field(default_factory=dict)
    _down_s: dict[int, float] = field(default_factory=dict)
    _dead: dict[int, tuple[MortalBackend, float]] = field(default_factory=dict)
    """The engines whose death has not been noticed yet, with its time, by the fault's number."""
    _loss_rates: list[float] = field(default_factory=list)

    def new_backend(self, replica: int) -> MortalBackend:
        """Make a replica's first backend, or one that takes as long to start as its last crash says."""
        from sim.backend import CostBackend

        inner = self.new_inner(replica)
        if not isinstance(inner, CostBackend):
            raise ConfigError("faults befall engines of one stage: leave --pipeline-parallel-size at 1")
        backend = self._mortals[replica] = MortalBackend(inner, self._down_s.get(replica, 0.0))
        return backend

    async def drive(self, llm: Ref[FromClients], client: Client) -> None:
        """Let every fault happen at its instant."""
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
                        acts.append((at_s, number, partial(self._notice, fault, number)))
                case Straggler():
                    until_s = fault.at_s + fault.for_s
                    acts.append((fault.at_s, number, partial(self._slow, fault, fault.factor)))
                    acts.append((until_s, number, partial(self._slow, fault, 1.0)))
                case SlowLink():
                    until_s = fault.at_s + fault.for_s
                    acts.append((fault.at_s, number, partial(self._throttle, fault, fault.part)))
                    acts.append((until_s, number, partial(self._throttle, fault, 1.0)))
                case LostTransfer():
                    acts.append((fault.at_s, number, partial(self._lose, fault)))
                    acts.append((fault.at_s + fault.for_s, number, partial(self._lose_no_more, fault)))
                case Cancellations():
                    acts.append((fault.at_s, number, partial(self._cancel, fault, llm, client)))
                case _:
                    pass
        return acts

    def is_lost(self, request_id: str) -> bool:
        """Draw whether a transfer gets lost that is done now."""
        return is_lost(self.seed, request_id, now_s(), self._loss_rates)

    def _note(self, fault: PlannedFault, num_cancelled: int = 0) -> None:
        self.befallen.append(Befallen(fault, now_s(), now_s(), num_cancelled))

    def _kill(self, fault: DeadEngine, number: int) -> None:
        mortal = self._mortals[fault.replica]
        if mortal.kill():
            self._dead[number] = mortal, now_s()
            if not fault.notice_s:
                self._notice(fault, number)

    def _notice(self, fault: DeadEngine, number: int) -> None:
        mortal, at_s = self._dead.pop(number, (None, 0.0))
        if mortal is not None and mortal.notice():
            self._down_s[fault.replica] = fault.down_s - fault.notice_s
            self.befallen.append(Befallen(fault, at_s, now_s()))

    def _slow(self, fault: Straggler, factor: float) -> None:
        pace = self.paces[fault.replica]

        def change() -> None:
            pace.factor = factor

        self._mortals[fault.replica].change_pace(change)
        if factor == fault.factor:
            self._note(fault)

    def _throttle(self, fault: SlowLink, part: float) -> None:
        if self.links is not None:
            self.links.slow_down(fault.replica, part)
        if part == fault.part:
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
