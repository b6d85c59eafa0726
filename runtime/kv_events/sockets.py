"""The two sockets of one engine: PUB for what happens, ROUTER for what somebody missed.

Frames are vLLM's. Published: topic, number of the batch in eight bytes, batch. Asked for again: a number, the
first wanted; answered by batches in the same frames behind an empty one, then by the number -1 alone.
"""

import logging
import threading
from collections import deque

import zmq

from actors.config import ConfigError
from actors.config.kv_events import KvEventsConfig, is_bound

log = logging.getLogger("sundog.kv_events")

END = (-1).to_bytes(8, "big", signed=True)
POLL_MS = 200
"""How soon the thread that answers sees that it is to end."""


class EngineSockets:
    """Sends batches at once, and keeps the last ones; a thread sends them again to who asks."""

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
        """Publish a batch; never waits: who reads too slowly misses it, and can ask for it again."""
        with self._lock:
            number, self._number = self._number, self._number + 1
            self._kept.append((number, batch))
        self._pub.send_multipart((self._topic, number.to_bytes(8, "big"), batch))

    def close(self) -> None:
        """Send what is still to be sent, within a second."""
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
    """Bind or connect; the address, with the port that was free. Raises ConfigError where it cannot."""
    try:
        if not is_bound(endpoint):
            socket.connect(endpoint)
            return endpoint
        socket.bind(endpoint)
        return socket.getsockopt_string(zmq.LAST_ENDPOINT)
    except zmq.ZMQError as error:
        socket.close(linger=0)
        raise ConfigError(f"--kv-events-config: cannot listen at {endpoint}: {error}") from None
