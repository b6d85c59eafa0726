"""The KvEventPublisher: a listener that publishes what each engine's prefix cache holds.

Law: who folds all batches of an engine, in order, knows which blocks it can find there. A cache that is lost
with its engine is cleared.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import zmq

from actors.config.kv_events import KvEventsConfig
from actors.kernel.actor import Actor
from actors.messages import EngineDown, Heard, StepOutput
from runtime.kv_events.schema import AllBlocksCleared, Event, EventBatch, events_of
from runtime.kv_events.sockets import EngineSockets


class KvEventPublisher(Actor[Heard]):
    """Publishes a batch for each step in which a cache has changed, on the sockets of its engine."""

    def __init__(self, sockets: list[EngineSockets], block_size: int, first_rank: int) -> None:
        super().__init__("kv-event-publisher")
        self._sockets, self._block_size, self._first_rank = sockets, block_size, first_rank
        self._lora_ids: dict[str, int] = {}
        self._encode = msgspec.msgpack.Encoder().encode

    def handle(self, message: Heard) -> None:
        match message:
            case StepOutput() if message.kv_events is not None and message.kv_events.blocks:
                blocks = message.kv_events.blocks
                self._publish(message.replica, list(events_of(blocks, self._block_size, self._lora_ids)))
            case EngineDown():
                self._publish(message.replica, [AllBlocksCleared()])
            case _:
                pass

    def _publish(self, replica: int, events: list[Event]) -> None:
        batch = EventBatch(time.time(), events, self._first_rank + replica)
        self._sockets[replica].send(self._encode(batch))


@contextmanager
def kv_event_publisher(
    config: KvEventsConfig, num_replicas: int, block_size: int, first_rank: int = 0
) -> Iterator[tuple[KvEventPublisher, list[str]]]:
    """The listener, and the addresses at which it publishes; raises ConfigError for one that is taken."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sockets: list[EngineSockets] = []
    try:
        for rank in range(first_rank, first_rank + num_replicas):
            sockets.append(EngineSockets(config, rank, context))
        yield KvEventPublisher(sockets, block_size, first_rank), [each.endpoint for each in sockets]
    finally:
        for each in sockets:
            each.close()
        context.destroy(linger=0)
