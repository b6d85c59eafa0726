"""Records that the lines of a journal hold: the deployment, arrivals and steps."""

from dataclasses import dataclass
from typing import NamedTuple

from sundog.actors.config import EngineConfig
from sundog.actors.core.batch import Blocked, Chunk
from sundog.actors.core.config import ConfigError
from sundog.actors.core.queue.policy import class_name

VERSION = 1
Rank = float | str | tuple["Rank", ...]
"""A policy's, as a journal writes it; the smallest goes first."""
BROKEN_OFF = "broken_off"
"""The key of the last line of a run that crashed or was interrupted, with the instant."""


class JournalError(ConfigError):
    """A record that cannot be read; the message names the file, the line and the reason."""

    @classmethod
    def at(cls, path: str, line: int, reason: str) -> "JournalError":
        """Return the error with the place of what is wrong."""
        return cls(f"{path}, line {line}: {reason}")


@dataclass(frozen=True, slots=True)
class Header:
    """The deployment, as far as it explains waiting; None is unknown. All files of a run share its `run`."""

    block_size: int | None = None
    num_blocks: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    num_watermark_blocks: int = 0
    policy: str | None = None
    router: str | None = None
    replicas: int = 1
    run: str | None = None

    @classmethod
    def of(cls, config: EngineConfig, num_blocks: int | None = None, run: str | None = None) -> "Header":
        """Describe a deployment by its options, with the id of its run."""
        scheduler = config.scheduler
        if num_blocks is None:
            num_blocks = scheduler.num_gpu_blocks
        return cls(
            block_size=scheduler.block_size,
            num_blocks=num_blocks,
            max_num_seqs=scheduler.max_num_active_seqs or scheduler.max_num_seqs,
            max_num_batched_tokens=scheduler.max_num_batched_tokens,
            num_watermark_blocks=int(scheduler.watermark * (num_blocks or 0)),
            policy=class_name(config.policy),
            router=class_name(config.router) if config.replicas > 1 else None,
            replicas=config.replicas,
            run=run,
        )


class Arrival(NamedTuple):
    """A request came, of this many tokens and at most that many new ones."""

    request_id: str
    time_s: float
    num_prompt_tokens: int
    max_tokens: int
    priority: int = 0
    tenant: str | None = None


class Chosen(NamedTuple):
    """The Router chose a replica for requests; what it knew then is as in `sundog.actors.messages.Routed`."""

    request_ids: tuple[str, ...]
    replica: int
    num_up: int
    num_requests: int
    fewest_requests: int
    most_requests: int
    num_hit_blocks: int | None = None
    most_other_hit_blocks: int | None = None


class Lost(NamedTuple):
    """An engine core crashed with these requests.

    Those that had a token, or were in its batches, ended; the others begin again.
    """

    replica: int
    time_s: float
    request_ids: tuple[str, ...]
    in_batch: tuple[str, ...] = ()


class Admitted(NamedTuple):
    """A request began to run, or runs again; `num_tokens` it knows, the first of them a hit."""

    request_id: str
    num_tokens: int
    num_hit_tokens: int
    resumed: bool


class Preempted(NamedTuple):
    """A request lost its blocks to `for_request` (itself, if it was the victim of its own growth).

    None: the record does not say which. `cause` is `KV blocks`, `prefix-cache reset`, or `urgency` when the
    other was admitted in its place.
    """

    request_id: str
    for_request: str | None
    cause: str = "KV blocks"


class JournalEnd(NamedTuple):
    """A request ended; it got a token in the first `num_tokens` steps of this output.

    `error` says why the policy refused it.
    """

    request_id: str
    reason: str
    num_tokens: int
    error: str | None = None


class Drafted(NamedTuple):
    """Some drafts of a decoding request were verified, and some of them accepted.

    Beside the accepted ones, `num_surplus` were accepted behind the end of its answer.
    """

    request_id: str
    num_drafts: int
    num_accepted: int
    num_surplus: int = 0

    @property
    def num_sampled(self) -> int:
        """The drafts that the sampler accepted, whether or not the answer had ended before them."""
        return self.num_accepted + self.num_surplus


class JournalStep(NamedTuple):
    """The contents of one StepOutput: one step, or a run of decode steps."""

    step: int
    start_s: float
    ends_s: tuple[float, ...]
    num_free_blocks: int
    replica: int = 0
    num_decodes: int = 0
    admitted: tuple[Admitted, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    idle: tuple[str, ...] = ()
    preempted: tuple[Preempted, ...] = ()
    ended: tuple[JournalEnd, ...] = ()
    blocked: Blocked | None = None
    ranks: tuple[tuple[str, "Rank"], ...] = ()
    """The ranks that the policy gave, as far as they became known."""
    num_free_blocks_planned: int | None = None
    """KV blocks that the (first) step's plan left, if a request was blocked."""
    drafts: tuple[Drafted, ...] = ()
