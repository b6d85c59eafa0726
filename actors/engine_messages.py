"""The part of the vocabulary about engines: what their ranks are told, that they are lost or back."""

from dataclasses import dataclass
from typing import Literal

from actors.actor import Ref

# --- EngineCore to Executor to Runner ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Scheduler tells Executor, and Executor every Runner, to end a run at its next step boundary.

    Something came that the next step must see. It is heard while the run goes on, and late ones
    are ignored.
    """

    step: int


@dataclass(frozen=True, slots=True)
class Load:
    """EngineCore asks Executor, and Executor every Runner, to make its model ready.

    Reply: `Capacity`.
    """


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a loaded backend offers; `num_blocks` includes the null block 0."""

    num_blocks: int
    block_size: int


# --- supervisor to Router to AsyncLLM and its listeners ------------------------------------------


@dataclass(frozen=True, slots=True)
class EngineRefs:
    """Where to reach an engine core that is up. Closing both lets it end."""

    scheduler: Ref
    kv_cache_manager: Ref
    capacity: Capacity

    def close(self) -> None:
        """Hang up; harmless when repeated."""
        self.scheduler.close()
        self.kv_cache_manager.close()


@dataclass(frozen=True, slots=True)
class EngineDown:
    """A replica's supervisor tells the Router that its engine core crashed, and is gone.

    The Router passes it on to AsyncLLM, and AsyncLLM to its listeners, with the `request_ids` that
    the core has lost. `retry_after_s` is when it may be back; None: never.
    """

    replica: int
    reason: str
    retry_after_s: float | None
    request_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineUp:
    """A replica's supervisor tells the Router, and the Router AsyncLLM, that there is a new core."""

    replica: int
    engine: EngineRefs


@dataclass(frozen=True, slots=True)
class Undelivered:
    """The Router tells AsyncLLM that no engine was up for these requests."""

    request_ids: tuple[str, ...]


# --- anyone to AsyncLLM: how is the engine? -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckHealth:
    """Anyone asks AsyncLLM how its engines are. Reply: `Health`."""


@dataclass(frozen=True, slots=True)
class Health:
    """How the engines are: `replicas` says healthy, restarting or dead of each.

    `healthy`: all are up. `degraded`: requests are served, but not by all replicas or not by the
    policy that was asked for. `restarting`: none is up, and one will be. `dead`: none will be.
    """

    status: Literal["healthy", "degraded", "restarting", "dead"]
    replicas: tuple[Literal["healthy", "restarting", "dead"], ...]
    reason: str = ""
    retry_after_s: float | None = None

    @property
    def serves(self) -> bool:
        """Whether new requests are taken."""
        return self.status in ("healthy", "degraded")
