"""Mover: carries blocks between engine processes, with the timing rules of `sim/fleet/links.py`.

It lives in the server, behind the Router. A part is read at one port and written at the other, then the next:
current transfers take turns, over the links between engines and server, wherever the engines are. A transfer
whose engine dies is refused, like one lost in a simulation. Faults slow an engine's links, cut them, and lose
transfers, from the next part on.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from sundog.actors.core.chance import is_lost
from sundog.actors.core.logged import logged
from sundog.actors.kernel.actor import Actor, ActorDied, Handled, Ref, Reply, answer
from sundog.actors.kernel.clock import Event
from sundog.actors.messages import CeaseFetch, Done, FetchKv, Refused
from sundog.actors.metrics.totals import KvTransferTotals
from sundog.runtime.kv_transfer.messages import KvPart, ReadKv, WriteKv

log = logging.getLogger("sundog")


class KvTransfer:
    """Current transfer: `num_moved` of its blocks have been written, the next part began at
    `part_begin_s`.
    """

    __slots__ = ("begin_s", "fetch", "num_moved", "part_begin_s", "reply")

    def __init__(self, fetch: FetchKv, begin_s: float) -> None:
        self.fetch, self.begin_s = fetch, begin_s
        self.part_begin_s = begin_s
        self.num_moved = 0
        self.reply: Reply[Done | Refused] = Reply()


Part = TypeVar("Part", KvPart, Done)


class PartMoved(NamedTuple):
    """Message of the mover to itself: a part was read, or `written`, or the reason why not."""

    transfer: KvTransfer
    answer: KvPart | Done | None
    error: BaseException | None
    written: int = 0


class NextPart(NamedTuple):
    """Message of the mover to itself: a slowed transfer may continue with its next part."""

    transfer: KvTransfer


class KvMover(Actor[FetchKv | CeaseFetch | PartMoved | NextPart]):
    """Actor that moves blocks for a Router between its engines' ports; `seed` decides which transfers faults
    lose.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__("kv-mover")
        self._seed = seed
        self._loss_rates: list[float] = []
        self._pace: dict[int, float] = {}
        """Speed of an engine's links as a share of the normal one, under a fault."""
        self._cut_off: list[KvTransfer] = []
        self._ports: dict[int, Ref[ReadKv | WriteKv]] = {}
        self._under_way: dict[str, KvTransfer] = {}
        self.totals = KvTransferTotals()

    def connect(self, replica: int, port: Ref[ReadKv | WriteKv]) -> None:
        """Set the port of an engine that came up, replacing the previous one."""
        self._ports[replica] = port

    def slow_down(self, replica: int, part: float) -> None:
        """Set the speed of an engine's links as a share of the normal one; 0 cuts them."""
        self._pace[replica] = part
        waiting, self._cut_off = self._cut_off, []
        for transfer in waiting:
            self.tell_self(NextPart(transfer))

    def lose(self, rate: float, *, more: bool) -> None:
        """Begin (`more`) or end losing this share of the transfers."""
        (self._loss_rates.append if more else self._loss_rates.remove)(rate)

    def handle(self, message: FetchKv | CeaseFetch | PartMoved | NextPart) -> Handled:
        match message:
            case FetchKv():
                transfer = KvTransfer(message, self.clock.now_s())
                self._under_way[message.request_id] = transfer
                self._go_on(transfer)
                return answer(message, transfer.reply)
            case CeaseFetch():
                self._under_way.pop(message.request_id, None)
            case PartMoved():
                if self._under_way.get(message.transfer.fetch.request_id) is message.transfer:
                    self._moved(message)
            case NextPart(transfer):
                if self._under_way.get(transfer.fetch.request_id) is transfer:
                    self._go_on(transfer)
            case _:
                self.unknown(message)
        return None

    def _pace_of(self, fetch: FetchKv) -> float:
        return min(self._pace.get(fetch.source, 1.0), self._pace.get(fetch.target, 1.0))

    def _go_on_in_time(self, transfer: KvTransfer) -> None:
        """Continue after the extra time that slow links need for the last part."""
        now_s, pace = self.clock.now_s(), self._pace_of(transfer.fetch)
        late_s = (now_s - transfer.part_begin_s) * (1 / pace - 1) if pace else 0.0
        if late_s == 0:
            return self._go_on(transfer)
        self.schedule(now_s + late_s, Event.TIMEOUT, NextPart(transfer))

    def _go_on(self, transfer: KvTransfer) -> None:
        fetch, transfer.part_begin_s = transfer.fetch, self.clock.now_s()
        if self._pace_of(fetch) == 0:
            return self._cut_off.append(transfer)
        left = fetch.source_blocks[transfer.num_moved :]
        if left:
            port = self._ports[fetch.source]
            return self._hear(transfer, lambda: port.request(ReadKv(left)))
        if is_lost(self._seed, fetch.request_id, self.clock.now_s(), self._loss_rates):
            return self._lose(transfer, "a fault of the run")
        del self._under_way[fetch.request_id]
        self.totals.num_transfers += 1
        self.totals.seconds += self.clock.now_s() - transfer.begin_s
        transfer.reply.set(Done())

    def _moved(self, moved: PartMoved) -> None:
        transfer, fetch = moved.transfer, moved.transfer.fetch
        match moved.answer:
            case KvPart(num_blocks, data):
                first = transfer.num_moved
                blocks = fetch.target_blocks[first : first + num_blocks]
                self.totals.num_bytes += len(data)
                port = self._ports[fetch.target]
                self._hear(transfer, lambda: port.request(WriteKv(blocks, data)), len(blocks))
            case Done():
                transfer.num_moved += moved.written
                self._go_on_in_time(transfer)
            case None:
                self._lose(transfer, f"{moved.error}")

    def _lose(self, transfer: KvTransfer, why: str) -> None:
        del self._under_way[transfer.fetch.request_id]
        self.totals.num_lost += 1
        log.warning("the KV of %s is lost on its way: %s", logged(transfer.fetch.request_id), why)
        transfer.reply.set(Refused(f"the transfer was lost: {why}"))

    def _hear(self, transfer: KvTransfer, ask: Callable[[], Reply[Part]], written: int = 0) -> None:
        def tell(given: Part | None, error: BaseException | None) -> None:
            self.tell_self(PartMoved(transfer, given, error, written))

        try:
            ask().then(tell)
        except ActorDied as error:
            tell(None, error)
