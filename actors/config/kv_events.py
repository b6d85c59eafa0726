"""`--kv-events-config`: addresses to publish KV events at, under vLLM's names."""

import json
from collections.abc import Callable
from dataclasses import dataclass

MOST = 2**31 - 1
MOST_PORT = 2**16 - 1
TRANSPORTS = ("tcp://", "ipc://")


@dataclass(frozen=True, slots=True)
class KvEventsConfig:
    """Addresses of KV events; the engine's number is added to TCP ports and appended to IPC paths.

    Addresses with `*`, and all IPC addresses, are bound; others are connected to. Batches of the last
    `buffer_steps` steps can be replayed at `replay_endpoint`. A subscriber with more than `hwm` unsent
    batches misses further ones.
    """

    enable_kv_cache_events: bool = False
    publisher: str = "zmq"
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""

    @property
    def publishes(self) -> bool:
        return self.enable_kv_cache_events and self.publisher == "zmq"

    @property
    def binds(self) -> bool:
        """Whether this end binds the address of its events; otherwise it connects to a subscriber's."""
        return is_bound(self.endpoint)

    def of_rank(self, endpoint: str, rank: int) -> str:
        """Return an engine's own address; port 0 takes a free one for each."""
        if endpoint.startswith("ipc://"):
            return f"{endpoint}_dp{rank}" if rank else endpoint
        host, _, port = endpoint.rpartition(":")
        return f"{host}:{int(port) + rank if int(port) else 0}"

    def check_ranks(self, last: int) -> None:
        """Raise ValueError if the engine of this number would have no valid port."""
        for name, endpoint in (("endpoint", self.endpoint), ("replay_endpoint", self.replay_endpoint)):
            if endpoint is None or endpoint.startswith("ipc://"):
                continue
            port = int(endpoint.rpartition(":")[2])
            if port and port + last > MOST_PORT:
                raise ValueError(
                    f"{name} is {endpoint}, and engine {last} needs the port {last} after it: give a port of"
                    f" at most {MOST_PORT - last}"
                )


def is_bound(endpoint: str) -> bool:
    """Return whether a publisher binds this address, by vLLM's rule; it connects to others."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith("ipc://")


def parse_kv_events_config(text: str) -> KvEventsConfig:
    """Parse the settings in a JSON object; raises ValueError with the reason."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"give a JSON object: {error}") from None
    if not isinstance(given, dict):
        raise ValueError('give a JSON object like {"enable_kv_cache_events": true}')
    for name, value in given.items():
        if name not in CHECKS:
            raise ValueError(f"{name} is not supported: give {', '.join(CHECKS)}")
        check, allowed = CHECKS[name]
        if not check(value):
            raise ValueError(f"{name} is {json.dumps(value)}: give {allowed}")
    known = {name: value for name, value in given.items() if value is not None}
    return KvEventsConfig(**known)


def _is_endpoint(value: object) -> bool:
    if not isinstance(value, str) or not value.startswith(TRANSPORTS):
        return False
    port = value.rpartition(":")[2]
    return value.startswith("ipc://") or (port.isascii() and port.isdigit() and int(port) < 2**16)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MOST


ENDPOINT = "an address like tcp://*:5557 or ipc:///tmp/events"
COUNT = f"a whole number from 0 to {MOST:,}"
CHECKS: dict[str, tuple[Callable[[object], bool], str]] = {
    "enable_kv_cache_events": (lambda value: isinstance(value, bool), "true or false"),
    "publisher": (lambda value: value in (None, "null", "zmq"), "zmq or null"),
    "endpoint": (_is_endpoint, ENDPOINT),
    "replay_endpoint": (lambda value: value is None or _is_endpoint(value), f"{ENDPOINT}, or null"),
    "buffer_steps": (_is_count, COUNT),
    "hwm": (_is_count, COUNT),
    "max_queue_size": (_is_count, COUNT),
    "topic": (lambda value: isinstance(value, str), "a text"),
}
