"""KV events of `sundog serve`: the listener that publishes them, if they were asked for."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from actors.config import ConfigError, EngineConfig
from actors.config.kv_events import parse_kv_events_config
from sundog.ends import remark
from sundog.options.serving import Serving

if TYPE_CHECKING:
    from actors.kernel.actor import Actor
    from actors.messages import Heard


def with_kv_events(config: EngineConfig, serving: Serving) -> EngineConfig:
    """The same, whose engines say what their caches hold if somebody publishes it."""
    check_ports(serving, config.replicas)
    asked = serving.kv_events_config
    return replace(config, publishes_kv_events=asked is not None and parse_kv_events_config(asked).publishes)


def check_ports(serving: Serving, num_engines: int) -> None:
    """Raise ConfigError unless each engine has a port to publish at."""
    if serving.kv_events_config is None:
        return
    asked = parse_kv_events_config(serving.kv_events_config)
    try:
        if asked.publishes:
            asked.check_ranks(serving.data_parallel_rank + num_engines - 1)
    except ValueError as error:
        raise ConfigError(f"--kv-events-config: {error}") from None


@contextmanager
def kv_event_listeners(serving: Serving, config: EngineConfig) -> "Iterator[list[Actor[Heard]]]":
    """The publisher, for as long as the server runs; raises ConfigError for an address that is taken."""
    if serving.kv_events_config is None or not config.publishes_kv_events:
        yield []
        return
    from runtime.kv_events.publisher import kv_event_publisher

    asked = parse_kv_events_config(serving.kv_events_config)
    size, first = config.scheduler.block_size, serving.data_parallel_rank
    with kv_event_publisher(asked, config.replicas, size, first) as (publisher, endpoints):
        where = ", ".join(endpoints)
        if asked.binds:
            remark(f"KV events are published at {where}")
        else:
            remark(f"KV events are sent to {where}, which must be bound")
        yield [publisher]
