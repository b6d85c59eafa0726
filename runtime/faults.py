"""Faults of real engine processes: some are killed at an instant, some are slowed for a while.

Instants count from when every engine is first up. A slowed process is stopped for a part of each PERIOD_S.
The downtime of a killed one is measured. The mover slows links between pools, and loses transfers.
"""

import logging
import signal
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sundog.actors.kernel.actor import Actor
from sundog.actors.kernel.clock import Event
from sundog.actors.messages import EngineDown, EngineUp, Heard
from sundog.runtime.kv_transfer.mover import KvMover
from sundog.runtime.worker.forks import Forks

log = logging.getLogger("sundog.faults")

PERIOD_S = 0.05
MOST_TIMES = 20.0
"""Largest slowdown; beyond it a process hardly runs between two signals."""


class Hurt(NamedTuple):
    """Fault of one replica: steps take `factor` times as long for `for_s` seconds; without a factor its
    process is killed.
    """

    at_s: float
    replica: int
    factor: float | None = None
    for_s: float = 0.0


class LinkFault(NamedTuple):
    """Fault of links between pools, or its end: changes the mover's behaviour from then on."""

    at_s: float
    says: str
    change: Callable[[KvMover], None]


Fault = Hurt | LinkFault


class NextSignal(NamedTuple):
    """Message: time to stop a slowed process, or to let it continue."""

    hurt: Hurt
    until_s: float
    goes_on: bool


class EngineFaults(Actor[Heard | Fault | NextSignal]):
    """Listener that signals engine processes, and reports how long killed ones are down."""

    def __init__(
        self, faults: Sequence[Fault], forks: Forks, replicas: int, mover: KvMover | None = None
    ) -> None:
        super().__init__("faults")
        self._faults, self._forks, self._mover = faults, forks, mover
        self._num_to_come = replicas
        self._killed_s: dict[int, float] = {}
        self._notice_s: dict[int, float] = {}
        """Seconds until each kill was noticed."""

    def handle(self, message: Heard | Fault | NextSignal) -> None:
        match message:
            case EngineUp():
                self._up(message.replica)
            case EngineDown(replica) if replica in self._killed_s:
                self._notice_s[replica] = self.clock.now_s() - self._killed_s[replica]
            case Hurt(factor=None):
                self._kill(message.replica)
            case Hurt():
                log.warning("a fault: replica %d takes %g times as long", message.replica, message.factor)
                self._hold_up(NextSignal(message, self.clock.now_s() + message.for_s, goes_on=False))
            case NextSignal():
                self._hold_up(message)
            case LinkFault(says=says, change=change):
                assert self._mover is not None, "only pools have links"
                log.warning("a fault: %s", says)
                change(self._mover)
            case _:
                pass

    async def closed(self) -> None:
        for process in self._forks.running.values():
            process.child.send(signal.SIGCONT)

    def _kill(self, replica: int) -> None:
        process = self._forks.running[replica]
        if process.child.how is None:  # else it is down already
            self._killed_s[replica] = self.clock.now_s()
            log.warning("a fault: %s, of replica %d, is killed", process.name, replica)
            process.kill()

    def _up(self, replica: int) -> None:
        now_s = self.clock.now_s()
        if (killed_s := self._killed_s.pop(replica, None)) is not None:
            text = "replica %d is up again, %.3f s after it was killed, which was noticed after %.3f s"
            noticed_s = self._notice_s.pop(replica, 0.0)  # 0 if it was known to be down when it was killed
            log.warning(text, replica, now_s - killed_s, noticed_s)
        if self._num_to_come:
            self._num_to_come -= 1
            if not self._num_to_come:
                for fault in self._faults:
                    self.schedule(now_s + fault.at_s, Event.TIMEOUT, fault)

    def _hold_up(self, turn: NextSignal) -> None:
        hurt, until_s, goes_on = turn
        process, now_s = self._forks.running[hurt.replica], self.clock.now_s()
        if now_s >= until_s:
            process.child.send(signal.SIGCONT)
            return log.warning("replica %d goes on at its own pace", hurt.replica)
        process.child.send(signal.SIGCONT if goes_on else signal.SIGSTOP)
        assert hurt.factor is not None
        going_s = PERIOD_S / hurt.factor
        lasts_s = going_s if goes_on else PERIOD_S - going_s
        self.schedule(min(now_s + lasts_s, until_s), Event.TIMEOUT, NextSignal(hurt, until_s, not goes_on))
