"""KvEventPublisher: a listener that publishes changes of each engine's prefix cache, in vLLM's frames.

Law: a reader that applies all batches of an engine, in order, has its set of cached blocks. A cache that is
lost with its engine is cleared.

An engine has two sockets: PUB for changes, ROUTER for replays. Published are the topic, the number of the
batch in eight bytes, and the batch. A replay request is the number of the first batch wanted; answers are
batches in the same frames after an empty one, then the number -1 alone.

A batch is an array in msgpack, and each event a map that names its type. Fields and their order are those of
`vllm/distributed/kv_events.py` in 0.32; fields that Sundog lacks (groups of layers, other tiers of memory)
are left out, as there. Block hashes are whole numbers of 64 bits, the end of the key, as in vLLM by default.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
import zmq

from sundog.actors.config import ConfigError
from sundog.actors.config.kv_events import KvEventsConfig, is_bound
from sundog.actors.core.blocks.kv_events import KvBlocks
from sundog.actors.core.params.sampling import Adapter
from sundog.actors.kernel.actor import Actor
from sundog.actors.messages import EngineDown, Heard, StepOutput

log = logging.getLogger("sundog.kv_events")

END = (-1).to_bytes(8, "big", signed=True)
POLL_MS = 200
"""Milliseconds after which the answering thread checks whether to end."""


class EngineSockets:
    """Publisher that sends batches at once and stores the last ones; a thread replays them to readers."""

    def __init__(self, config: KvEventsConfig, rank: int, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        self._topic = config.topic.encode()
        self._number = 0
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps)
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._pub = context.socket(zmq.PUB)
        self._pub.set_hwm(config.hwm)
        self.endpoint = _attach(self._pub, config.of_rank(config.endpoint, rank))
        self.replay_endpoint: str | None = None
        self._router: zmq.Socket[bytes] | None = None
        if config.replay_endpoint is not None:
            self._router = context.socket(zmq.ROUTER)
            self.replay_endpoint = _attach(self._router, config.of_rank(config.replay_endpoint, rank))
            self._answering = threading.Thread(
                target=self._answer_for_ever, args=(self._router,), name=f"kv-events-{rank}", daemon=True
            )
            self._answering.start()

    def send(self, batch: bytes) -> None:
        """Publish a batch without waiting: a slow reader misses it, and can request a replay."""
        with self._lock:
            number, self._number = self._number, self._number + 1
            self._kept.append((number, batch))
        self._pub.send_multipart((self._topic, number.to_bytes(8, "big"), batch))

    def close(self) -> None:
        """Send what is still queued, within a second."""
        self._is_over.set()
        if self._router is not None:
            self._answering.join()
            self._router.close(linger=0)
        self._pub.close(linger=1000)

    def _answer_for_ever(self, router: "zmq.Socket[bytes]") -> None:
        while not self._is_over.is_set():
            if router.poll(POLL_MS):
                try:
                    self._answer(router)
                except zmq.ZMQError as error:
                    log.warning("a replay of KV events failed: %s", error)

    def _answer(self, router: "zmq.Socket[bytes]") -> None:
        frames = router.recv_multipart()
        if len(frames) != 3 or len(frames[2]) != 8:
            log.warning("a replay of KV events was asked for in %d frames that are none", len(frames))
            return
        client, first = frames[0], int.from_bytes(frames[2], "big")
        with self._lock:
            kept = [each for each in self._kept if each[0] >= first]
        for number, batch in kept:
            router.send_multipart((client, b"", self._topic, number.to_bytes(8, "big"), batch))
        router.send_multipart((client, b"", b"", END, b""))


def _attach(socket: "zmq.Socket[bytes]", endpoint: str) -> str:
    """Bind or connect; return the address with the actual port. Raises ConfigError if it cannot."""
    try:
        if not is_bound(endpoint):
            socket.connect(endpoint)
            return endpoint
        socket.bind(endpoint)
        return socket.getsockopt_string(zmq.LAST_ENDPOINT)
    except zmq.ZMQError as error:
        socket.close(linger=0)
        raise ConfigError(f"--kv-events-config: cannot listen at {endpoint}: {error}") from None


GPU = "GPU"


class BlockStored(msgspec.Struct, tag=True, omit_defaults=True):
    """Blocks entered the cache."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[str, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None


class BlockRemoved(msgspec.Struct, tag=True, omit_defaults=True):
    """Blocks left the cache."""

    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, omit_defaults=True):
    """The whole cache was cleared."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    """Events of a step; `ts` is in Unix seconds."""

    ts: float
    events: list[Event]
    data_parallel_rank: int | None = None


def events_of(changes: Sequence[KvBlocks], block_size: int, lora_ids: dict[str, int]) -> Iterator[Event]:
    """Yield the changes as events, consecutive ones merged; a new adapter gets a number."""
    removed: list[int] = []
    for blocks in changes:
        if not blocks.is_stored and blocks.keys:
            removed += map(block_hash, blocks.keys)
            continue
        if removed:
            yield BlockRemoved(removed, GPU, 0)
            removed = []
        yield _stored(blocks, block_size, lora_ids) if blocks.is_stored else AllBlocksCleared()
    if removed:
        yield BlockRemoved(removed, GPU, 0)


def block_hash(key: object) -> int:
    """Return the last eight bytes of a block's key as a number."""
    assert isinstance(key, bytes), "keys are hashed where tokens are known"
    return int.from_bytes(key[-8:], "big")


def _stored(blocks: KvBlocks, block_size: int, lora_ids: dict[str, int]) -> BlockStored:
    adapter = blocks.adapter
    return BlockStored(
        block_hashes=[block_hash(key) for key in blocks.keys],
        parent_block_hash=None if blocks.parent is None else block_hash(blocks.parent),
        token_ids=list(blocks.token_ids),
        block_size=block_size,
        lora_id=None if adapter is None else lora_ids.setdefault(adapter.name, len(lora_ids) + 1),
        medium=GPU,
        lora_name=None if adapter is None else adapter.name,
        extra_keys=_extra_keys(adapter, blocks),
        group_idx=0,
        session_id=blocks.session,
    )


def _extra_keys(adapter: Adapter | None, blocks: KvBlocks) -> list[tuple[str, ...] | None]:
    """Return what each block's key depends on besides tokens: the adapter and, for the first block, the
    salt.
    """
    own = () if adapter is None else (adapter.name,)
    salted = own if blocks.cache_salt is None else (*own, blocks.cache_salt)
    return [(salted if index == 0 else own) or None for index in range(len(blocks.keys))]


class KvEventPublisher(Actor[Heard]):
    """Publishes a batch for each step that changed a cache, on the sockets of its engine."""

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
    """Yield the listener and its addresses; raises ConfigError for an address in use."""
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
