"""The mover: carries blocks from engine process to engine process, as `sim/fleet/links.py` lets them pass.

It lives in the server, behind the Router. A part is read at one port and written at the other, then the next:
transfers under way take turns, and go wherever engines are, over the links that they have with the server.
A transfer whose engine dies is refused, as one that gets lost in a simulation.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from actors.kernel.actor import Actor, ActorDied, Handled, Ref, Reply, answer
from actors.messages import CeaseFetch, Done, FetchKv, Refused
from actors.metrics.totals import KvTransferTotals
from runtime.kv_transfer.messages import KvPart, ReadKv, WriteKv

log = logging.getLogger("sundog")


class KvTransfer:
    """A transfer under way; of its blocks `num_moved` have been written."""

    __slots__ = ("begin_s", "fetch", "num_moved", "reply")

    def __init__(self, fetch: FetchKv, begin_s: float) -> None:
        self.fetch, self.begin_s = fetch, begin_s
        self.num_moved = 0
        self.reply: Reply[Done | Refused] = Reply()


Part = TypeVar("Part", KvPart, Done)


class PartMoved(NamedTuple):
    """The mover tells itself that a part was read, or `written`, or why it was not."""

    transfer: KvTransfer
    answer: KvPart | Done | None
    error: BaseException | None
    written: int = 0


class KvMover(Actor[FetchKv | CeaseFetch | PartMoved]):
    """Moves blocks for a Router between the ports of its engines."""

    def __init__(self) -> None:
        super().__init__("kv-mover")
        self._ports: dict[int, Ref[ReadKv | WriteKv]] = {}
        self._under_way: dict[str, KvTransfer] = {}
        self.totals = KvTransferTotals()

    def connect(self, replica: int, port: Ref[ReadKv | WriteKv]) -> None:
        """Learn the port of an engine that comes up, in the place of the one before."""
        self._ports[replica] = port

    def handle(self, message: FetchKv | CeaseFetch | PartMoved) -> Handled:
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
            case _:
                self.unknown(message)
        return None

    def _go_on(self, transfer: KvTransfer) -> None:
        """Read the next part, unless all is done."""
        fetch = transfer.fetch
        left = fetch.source_blocks[transfer.num_moved :]
        if left:
            port = self._ports[fetch.source]
            return self._hear(transfer, lambda: port.request(ReadKv(left)))
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
                self._go_on(transfer)
            case None:
                del self._under_way[fetch.request_id]
                self.totals.num_lost += 1
                log.warning("the KV of %s is lost on its way: %s", fetch.request_id, moved.error)
                transfer.reply.set(Refused(f"the transfer was lost: {moved.error}"))

    def _hear(self, transfer: KvTransfer, ask: Callable[[], Reply[Part]], written: int = 0) -> None:
        """Ask a port, and have its answer come as a message."""

        def tell(given: Part | None, error: BaseException | None) -> None:
            self.tell_self(PartMoved(transfer, given, error, written))

        try:
            ask().then(tell)
        except ActorDied as error:
            tell(None, error)
