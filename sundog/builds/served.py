"""Model of `sundog serve` or `sundog emulate`, real or emulated, ready to be served.

Includes its adapters, and the listener that publishes its KV events.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sundog.actors.config import ConfigError, EngineConfig
from sundog.actors.config.kv_events import parse_kv_events_config
from sundog.actors.core.params.sampling import Adapter
from sundog.actors.core.predictors import GuardedPredictor, LengthPredictor
from sundog.actors.policy_file import find_own_predictor
from sundog.ends import remark
from sundog.options.serving import Serving, parse_lora_module

if TYPE_CHECKING:
    from sundog.actors.api.emulation import Emulation
    from sundog.actors.api.serve_graph import Driver
    from sundog.actors.config.sampling_defaults import SamplingDefaults
    from sundog.actors.config.vector_sizes import VectorSizes
    from sundog.actors.engine.backend import Engine
    from sundog.actors.front.codec import Vocabulary
    from sundog.actors.kernel.actor import Actor
    from sundog.actors.messages import Heard
    from sundog.runtime.kv_transfer.mover import KvMover
    from sundog.runtime.text.tokenizer import Tokenizer
    from sundog.sim.cost.work import CostModel
    from sundog.sim.emulation.clock import ScaledClock


log = logging.getLogger("sundog")


@dataclass(frozen=True, slots=True)
class Served:
    """Model that is ready to be served."""

    name: str
    config: EngineConfig
    new_engine: "Callable[[int], Engine]"
    """Function that makes a replica's engine."""
    tokenizer: "Tokenizer"
    vocabulary: "Vocabulary"
    defaults: "SamplingDefaults"
    """Sampling parameters of requests that do not set them."""
    device: str
    """Name of its device."""
    adapters: tuple[Adapter, ...] = ()
    max_loras: int | None = None
    loads_adapters: bool = False
    """Whether adapters may be loaded and unloaded."""
    vectors: "VectorSizes | None" = None
    folder: Path | None = None
    """Folder of a real model."""
    cost: "CostModel | None" = None
    """Cost of its steps; None if that is measured while serving."""
    remarks: tuple[str, ...] = ()
    """Warnings about its timing, for people."""
    listeners: "tuple[Actor[Heard], ...]" = ()
    emulation: "Emulation | None" = None
    clock: "ScaledClock | None" = None
    """Clock, if it is not real time."""
    driver: "Driver | None" = None
    """Driver that scales its fleet, if any."""
    links: "KvMover | None" = None
    """Links that move keys and values between pools."""


def adapters(serving: Serving, model: str, names: tuple[str, ...] = ()) -> tuple[Adapter, ...]:
    """Return the adapters of `--lora-modules`; ConfigError for duplicate names, or another base model.

    Clients call the model `model`; `names` are its other names.
    """
    if serving.lora_modules and not serving.enable_lora:
        raise ConfigError("--lora-modules is given without --enable-lora: add it")
    found: list[Adapter] = []
    for given in serving.lora_modules:
        module = parse_lora_module(given)
        adapter = module.adapter
        if adapter.name in [model, *(each.name for each in found)]:
            raise ConfigError(f"--lora-modules is {given}: another model is called {adapter.name}")
        if module.base not in (None, model, *names):
            raise ConfigError(
                f"--lora-modules is {given}: its base model is {module.base}, and {model} is served"
            )
        found.append(adapter)
    return tuple(found)


def template_of(serving: Serving) -> Path | None:
    """Return the file of `--chat-template`; ConfigError if it does not exist."""
    if serving.chat_template is None:
        return None
    file = Path(serving.chat_template)
    if not file.is_file():
        raise ConfigError(f"--chat-template is {file}: there is no such file; give one of Jinja")
    return file


def max_loras(serving: Serving) -> int | None:
    """Return the number of adapters reported to gateways; None for a server without adapters."""
    if not serving.enable_lora:
        return None
    return serving.max_loras or max(len(serving.lora_modules), 1)


def as_served(config: EngineConfig, serving: Serving) -> EngineConfig:
    """Return the deployment with KV events and length predictions, if requested."""
    check_ports(serving, config.replicas)
    asked = serving.kv_events_config
    return replace(
        config,
        publishes_kv_events=asked is not None and parse_kv_events_config(asked).publishes,
        predictor=None if serving.predictor is None else _predictor(serving.predictor),
    )


def _predictor(text: str) -> LengthPredictor:
    found = find_own_predictor(text)
    if isinstance(found, GuardedPredictor):
        found.fallback = LengthPredictor()
        found.on_failure.append(lambda error: log.error("%s; lengths are not predicted any more", error))
    return found


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
    """Yield the publisher while the server runs; raises ConfigError for an address in use."""
    if serving.kv_events_config is None or not config.publishes_kv_events:
        yield []
        return
    from sundog.runtime.kv_events.publisher import kv_event_publisher

    asked = parse_kv_events_config(serving.kv_events_config)
    size, first = config.scheduler.block_size, serving.data_parallel_rank
    with kv_event_publisher(asked, config.replicas, size, first) as (publisher, endpoints):
        where = ", ".join(endpoints)
        if asked.binds:
            remark(f"KV events are published at {where}")
        else:
            remark(f"KV events are sent to {where}, which must be bound")
        yield [publisher]
