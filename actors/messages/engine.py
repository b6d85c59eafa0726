"""Messages to engines, and messages about lost and restarted engines."""

from collections.abc import Callable
from dataclasses import field
from typing import Literal

from sundog.actors.core.computation import Computation
from sundog.actors.core.params.sampling import Adapter
from sundog.actors.core.records import dataclass
from sundog.actors.core.request import Submit
from sundog.actors.kernel.actor import Ref

# --- EngineCore to Executor to Runner ------------------------------------------------------------


@dataclass(slots=True)
class Interrupt:
    """Scheduler tells Executor, and Executor every Runner, to end a decode run at its next step boundary.

    A message came that the next step must see. An Interrupt is handled during the run; one that arrives after
    the run is ignored.
    """

    step: int


@dataclass(frozen=True, slots=True)
class Load:
    """EngineCore asks Executor, and Executor every Runner, to load its model."""

    def answered_by(self, answer: "Capacity") -> "Load":
        return self


@dataclass(frozen=True, slots=True)
class Capacity:
    """Capacity of a loaded backend; `num_blocks` includes the null block 0.

    `computation` is None for backends that compute no steps of a decoder, such as cost models.
    """

    num_blocks: int
    block_size: int
    computation: Computation | None = None


# --- Scheduler to the monitor of its process ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TakenIn:
    """Scheduler reports to its process's monitor which requests a batch admits, before the batch runs.

    If the batch kills the process, these requests are known. Preempted requests are in no batch until
    admitted again.
    """

    request_ids: tuple[str, ...]
    preempted: tuple[str, ...] = ()


# --- Router to Scheduler: Submit (core/request.py) and ---------------------------------------------


@dataclass(frozen=True, slots=True)
class Abort:
    """AsyncLLM tells Router, and Router the Scheduler, to end requests; unknown ids are ignored.

    With `reason` "stop" the detokenised text reached a stop string.
    """

    request_ids: tuple[str, ...]
    reason: Literal["abort", "stop"] = "abort"


@dataclass(frozen=True, slots=True)
class Pull:
    """Router asks a Scheduler to continue a request whose prompt another engine has computed.

    The reply comes once the request has blocks, which are then to be filled; a withdrawn request gets no
    reply. A request that has begun is refused if there is no room at once. If its own blocks are still on
    this engine, handed over and not fetched, it gets them back.
    """

    submit: Submit

    def answered_by(self, answer: "Reserved | Refused") -> "Pull":
        return self


@dataclass(frozen=True, slots=True)
class HandOver:
    """Router tells a Scheduler to hand over a request at the end of a step, once that is possible.

    The request ends there as `handed`, with what another engine needs to continue it. With `keeps_kv`, the
    blocks of a running request are kept until they have been fetched.
    """

    request_id: str
    keeps_kv: bool


@dataclass(frozen=True, slots=True)
class Reserved:
    """Reply: the request has its blocks; those listed are to be filled, the others were cached."""

    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KvFetched:
    """Router tells both Schedulers that a request's blocks have arrived: the sender frees its own, the
    receiver continues.
    """

    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Router tells a Scheduler to drop requests that it was about to fetch, without reporting their end."""

    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FetchKv:
    """Router asks the links between engines to copy a request's blocks; refused if they are lost on the way.

    The contents of `source_blocks` go to equally many `target_blocks`. `num_tokens` is the capacity of these
    blocks: they are copied whole.
    """

    request_id: str
    source: int
    target: int
    num_tokens: int
    source_blocks: tuple[int, ...] = ()
    target_blocks: tuple[int, ...] = ()

    def answered_by(self, answer: "Done | Refused") -> "FetchKv":
        return self


@dataclass(frozen=True, slots=True)
class CeaseFetch:
    """Router tells the links to stop copying a request's blocks."""

    request_id: str


# --- anyone to KVCacheManager --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResetPrefixCache:
    """Any actor asks the KVCacheManager, which asks the Scheduler, to clear the prefix cache.

    The reset happens before the next plan, in order with other messages. It is refused while requests hold
    blocks. With `reset_running` running requests are preempted first, and their steps in flight are
    discarded. `begins_anew` is for an engine without requests whose process lost everything: it also clears
    blocks that others might have fetched, and those in host memory. `replica` limits a reset by the Router to
    one engine; None means all.
    """

    reset_running: bool = False
    replica: int | None = None
    begins_anew: bool = False

    def answered_by(self, answer: "Done | Refused") -> "ResetPrefixCache":
        return self


@dataclass(frozen=True, slots=True)
class Freeze:
    """Any actor asks AsyncLLM, AsyncLLM the Router, and the Router every Scheduler, to pause or continue.

    Requests keep their places and blocks. The reply comes once no step is in flight.
    """

    is_frozen: bool = True

    def answered_by(self, answer: "Done | Refused") -> "Freeze":
        return self


@dataclass(frozen=True, slots=True)
class ChangeAdapters:
    """API asks AsyncLLM, AsyncLLM the Router, and the Router every engine, to load or unload LoRA adapters.

    The current step keeps its adapters. Refused if one of `loaded` cannot be read or belongs to another
    model. Running and waiting requests with an unloaded adapter still finish with it.
    """

    loaded: tuple[Adapter, ...] = ()
    unloaded: tuple[Adapter, ...] = ()

    def answered_by(self, answer: "Done | Refused") -> "ChangeAdapters":
        """Return the message; declares its reply type for the type checker, and is never called."""
        return self


@dataclass(frozen=True, slots=True)
class Done:
    """Reply: the order was carried out."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Reply: the request was not accepted, and nothing changed.

    `kind` is `invalid` for a mistake of the caller (400), with the field in `param` and OpenAI's name of the
    mistake, if any, in `code`; `overloaded` if the client should try again after `retry_after_s` (429);
    `unavailable` while no engine is up (503); `failed` if a bug ended this request alone (500).
    """

    reason: str
    kind: Literal["invalid", "overloaded", "unavailable", "failed"] = "invalid"
    param: str | None = None
    code: str | None = None
    retry_after_s: float | None = None


ToEngine = Submit | Abort | Freeze | ChangeAdapters | HandOver | Pull | KvFetched | Withdraw
"""Messages from a Router to a Scheduler."""

# --- supervisor to Router to AsyncLLM and its listeners ------------------------------------------


def _nothing_runs() -> tuple[str, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class EngineRefs:
    """Addresses of a running engine core. The core ends once both are closed.

    `running` returns the requests in its batches: the supervisor reads them after the core has ended.
    """

    scheduler: Ref[ToEngine]
    kv_cache_manager: Ref[ResetPrefixCache]
    capacity: Capacity
    running: Callable[[], tuple[str, ...]] = field(default=_nothing_runs, compare=False)

    def close(self) -> None:
        """Hang up; idempotent."""
        self.scheduler.close()
        self.kv_cache_manager.close()


@dataclass(frozen=True, slots=True)
class EngineDown:
    """A replica's supervisor tells the Router that its engine core crashed.

    The Router passes it on to AsyncLLM, and AsyncLLM to its listeners, with the `request_ids` that the core
    has lost. Those that were `in_batch` end with an error, because one of them may have caused the crash.
    `retry_after_s` is when the core may be back; None: never.
    """

    replica: int
    reason: str
    retry_after_s: float | None
    request_ids: tuple[str, ...] = ()
    in_batch: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineUp:
    """A replica's supervisor tells the Router, and the Router AsyncLLM, that a new core is up."""

    replica: int
    engine: EngineRefs


@dataclass(frozen=True, slots=True)
class PolicyFailed:
    """An EngineCore tells AsyncLLM and the listeners that its policy failed and was replaced."""

    replica: int
    reason: str


@dataclass(slots=True)
class Routed:
    """The Router tells the listeners which replica it chose for requests, and the facts at that time.

    The replica had `num_requests` unfinished requests; over the `num_up` replicas that number ranged from
    `fewest_requests` to `most_requests`. It had `num_hit_blocks` of the prompt, and the best other replica
    `most_other_hit_blocks`; both are None if the policy does not look them up.
    """

    request_ids: tuple[str, ...]
    replica: int
    num_up: int
    num_requests: int
    fewest_requests: int
    most_requests: int
    num_hit_blocks: int | None
    most_other_hit_blocks: int | None


@dataclass(frozen=True, slots=True)
class RouterFailed:
    """The Router tells AsyncLLM that its policy failed and round-robin replaced it for good."""

    reason: str


@dataclass(frozen=True, slots=True)
class Undelivered:
    """The Router tells AsyncLLM that requests reached no engine."""

    request_ids: tuple[str, ...]
    was_lost: bool = False


EngineNews = EngineDown | EngineUp | PolicyFailed | RouterFailed | Undelivered
"""Messages about engines that AsyncLLM receives."""


# --- anyone to AsyncLLM: how is the engine? -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckHealth:
    """Anyone asks AsyncLLM for the state of its engines."""

    def answered_by(self, answer: "Health") -> "CheckHealth":
        return self


ReplicaStatus = Literal["healthy", "draining", "restarting", "dead"]


@dataclass(frozen=True, slots=True)
class Health:
    """The state of the engines; `replicas` has healthy, draining, restarting or dead for each.

    `healthy`: all are up. `degraded`: requests are served, but some replica is down or a policy was replaced.
    `restarting`: none is up, and one will be. `draining`: those that are up get no new requests. `dead`: none
    is up, and none will be.
    """

    status: Literal["healthy", "degraded", "restarting", "draining", "dead"]
    replicas: tuple[ReplicaStatus, ...]
    reason: str = ""
    retry_after_s: float | None = None
    capacity: Capacity | None = field(default=None, compare=False)
    """Capacity of the engine that came up last."""

    @property
    def serves(self) -> bool:
        """Whether new requests are accepted."""
        return self.status in ("healthy", "degraded")
