"""Messages about engines: what they are asked, and that they are lost or back."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from sundog.actors.core.computation import Computation
from sundog.actors.core.request import Submit
from sundog.actors.kernel.actor import Ref

# --- EngineCore to Executor to Runner ------------------------------------------------------------


@dataclass(slots=True)
class Interrupt:
    """Scheduler tells Executor, and Executor every Runner, to end a run at its next step boundary.

    A message came that the next step must see. An Interrupt is handled while the run goes on; one that comes
    after the run is ignored.
    """

    step: int


@dataclass(frozen=True, slots=True)
class Load:
    """EngineCore asks Executor, and Executor every Runner, to make its model ready."""

    def answered_by(self, answer: "Capacity") -> "Load":
        """Names its answer, for a type checker."""
        return self


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of a loaded backend; `num_blocks` includes the null block 0.

    `computation` is None of backends that compute no steps of a decoder, such as cost models.
    """

    num_blocks: int
    block_size: int
    computation: Computation | None = None


# --- Scheduler to the monitor of its process ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TakenIn:
    """Scheduler tells the monitor of its process which requests a batch takes in, before it is executed.

    The process may die of the batch. Requests that the batch preempts are in none until they are taken in
    again.
    """

    request_ids: tuple[str, ...]
    preempted: tuple[str, ...] = ()


# --- Router to Scheduler: Submit (core/request.py) and ---------------------------------------------


@dataclass(frozen=True, slots=True)
class Abort:
    """AsyncLLM tells Router, and Router the Scheduler, to end requests; unknown ids are ignored.

    With `reason` "stop" a stop string was seen after detokenisation.
    """

    request_ids: tuple[str, ...]
    reason: Literal["abort", "stop"] = "abort"


@dataclass(frozen=True, slots=True)
class Pull:
    """Router asks a Scheduler to take a request whose prompt another has computed, and to make room for it.

    The answer comes once the request has its blocks, which are then to be filled; one that is withdrawn
    before has none. One that has begun is refused where there is no room at once. Where its own blocks are,
    handed over and not fetched, it gets these.
    """

    submit: Submit

    def answered_by(self, answer: "Reserved | Refused") -> "Pull":
        """Names its answer, for a type checker."""
        return self


@dataclass(frozen=True, slots=True)
class HandOver:
    """Router tells a Scheduler to hand over a request when a step ends after which that is possible.

    It ends there as `handed`, with what another engine needs to go on. If it `keeps_kv`, the blocks of one
    that runs are kept until they have been fetched.
    """

    request_id: str
    keeps_kv: bool


@dataclass(frozen=True, slots=True)
class Reserved:
    """The answer that a request has its blocks, and which are to be filled: the others were cached."""

    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KvFetched:
    """Router tells two Schedulers that blocks are where they are to be: one frees its own, one goes on."""

    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Router tells a Scheduler to forget requests that it was to fetch, and to say nothing of their end."""

    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FetchKv:
    """Router asks the links between engines to move a request's blocks; refused if they get lost on the way.

    What is in `source_blocks` goes to as many `target_blocks`. `num_tokens` is what these blocks hold when
    they are full: blocks go as they are.
    """

    request_id: str
    source: int
    target: int
    num_tokens: int
    source_blocks: tuple[int, ...] = ()
    target_blocks: tuple[int, ...] = ()

    def answered_by(self, answer: "Done | Refused") -> "FetchKv":
        """Names its answer, for a type checker."""
        return self


@dataclass(frozen=True, slots=True)
class CeaseFetch:
    """Router tells the links to move a request's blocks no further."""

    request_id: str


# --- anyone to KVCacheManager --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResetPrefixCache:
    """Anyone asks the KVCacheManager, and it the Scheduler, to forget cached prefixes.

    The reset happens before the next plan, in its turn among other messages. It is refused while requests
    hold blocks. With `reset_running` running requests are preempted first, and their steps in flight are
    thrown away. If the engine `begins_anew` it has no requests, and all that its process had is gone: blocks
    that others might have fetched, and those in the host's memory. The Router asks one `replica`, or all.
    """

    reset_running: bool = False
    replica: int | None = None
    begins_anew: bool = False

    def answered_by(self, answer: "Done | Refused") -> "ResetPrefixCache":
        """Names its answer, for a type checker."""
        return self


@dataclass(frozen=True, slots=True)
class Freeze:
    """Anyone asks AsyncLLM, it the Router, and it every Scheduler, to begin no step, or to go on.

    Requests keep their places and blocks meanwhile. The answer comes when no step runs any more.
    """

    is_frozen: bool = True

    def answered_by(self, answer: "Done | Refused") -> "Freeze":
        """Names its answer, for a type checker."""
        return self


@dataclass(frozen=True, slots=True)
class Done:
    """The answer that an order has been carried out."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The request was not taken and nothing was changed.

    `kind` `invalid` is the caller's mistake (400), `param` names the field and `code` is OpenAI's
    name for the mistake, if it has one; `overloaded` asks to come back after `retry_after_s` (429),
    and so does `unavailable`, while no engine is up (503). With `failed` a bug stopped this request alone
    (500).
    """

    reason: str
    kind: Literal["invalid", "overloaded", "unavailable", "failed"] = "invalid"
    param: str | None = None
    code: str | None = None
    retry_after_s: float | None = None


ToEngine = Submit | Abort | Freeze | HandOver | Pull | KvFetched | Withdraw
"""The messages that a Router sends a Scheduler."""

# --- supervisor to Router to AsyncLLM and its listeners ------------------------------------------


def _nothing_runs() -> tuple[str, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class EngineRefs:
    """The addresses of an engine core that is up. Closing both lets it end.

    `running` returns the requests in its batches: the supervisor reads them once the core is over.
    """

    scheduler: Ref[ToEngine]
    kv_cache_manager: Ref[ResetPrefixCache]
    capacity: Capacity
    running: Callable[[], tuple[str, ...]] = field(default=_nothing_runs, compare=False)

    def close(self) -> None:
        """Hang up; harmless when repeated."""
        self.scheduler.close()
        self.kv_cache_manager.close()


@dataclass(frozen=True, slots=True)
class EngineDown:
    """A replica's supervisor tells the Router that its engine core crashed, and is gone.

    The Router passes it on to AsyncLLM, and AsyncLLM to its listeners, with the `request_ids` that
    the core has lost. Those that were `in_batch` end with an error: one of them may have killed it.
    `retry_after_s` is when it may be back; None: never.
    """

    replica: int
    reason: str
    retry_after_s: float | None
    request_ids: tuple[str, ...] = ()
    in_batch: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineUp:
    """A replica's supervisor tells the Router, and the Router AsyncLLM, that there is a new core."""

    replica: int
    engine: EngineRefs


@dataclass(frozen=True, slots=True)
class PolicyFailed:
    """An EngineCore tells AsyncLLM and the listeners that its policy failed, and another took over."""

    replica: int
    reason: str


@dataclass(slots=True)
class Routed:
    """The Router tells the listeners which of several replicas it chose for requests, and what it knew then.

    `num_requests` were unfinished on it, `fewest_requests` and `most_requests` on those of the `num_up`
    replicas that had fewest and most. Of the prompt it had `num_hit_blocks`, and no other more than
    `most_other_hit_blocks`; None where the policy does not ask.
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
    """The Router tells AsyncLLM that its policy failed, and round-robin took over for good."""

    reason: str


@dataclass(frozen=True, slots=True)
class Undelivered:
    """The Router tells AsyncLLM that no engine was up for these requests, or that their way was lost."""

    request_ids: tuple[str, ...]
    was_lost: bool = False


EngineNews = EngineDown | EngineUp | PolicyFailed | RouterFailed | Undelivered
"""The messages about engines that AsyncLLM is told."""


# --- anyone to AsyncLLM: how is the engine? -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckHealth:
    """Anyone asks AsyncLLM how its engines are."""

    def answered_by(self, answer: "Health") -> "CheckHealth":
        """Names its answer, for a type checker."""
        return self


ReplicaStatus = Literal["healthy", "draining", "restarting", "dead"]


@dataclass(frozen=True, slots=True)
class Health:
    """The state of the engines: `replicas` says healthy, draining, restarting or dead of each.

    `healthy`: all are up. `degraded`: requests are served, but not by all replicas or not by the
    policy that was asked for. `restarting`: none is up, and one will be. `draining`: those that are up are
    given nothing new. `dead`: none will be.
    """

    status: Literal["healthy", "degraded", "restarting", "draining", "dead"]
    replicas: tuple[ReplicaStatus, ...]
    reason: str = ""
    retry_after_s: float | None = None
    capacity: Capacity | None = field(default=None, compare=False)
    """The capacity of the engine that came up last."""

    @property
    def serves(self) -> bool:
        """Return True if new requests are taken."""
        return self.status in ("healthy", "degraded")
