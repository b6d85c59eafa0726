"""Records in the lines of a journal: the deployment, arrivals and steps."""

from dataclasses import dataclass
from typing import NamedTuple

from sundog.actors.config import EngineConfig
from sundog.actors.core.batch import Blocked, Chunk
from sundog.actors.core.config import ConfigError
from sundog.actors.core.queue.policy import class_name

VERSION = 1
Rank = float | str | tuple["Rank", ...]
"""Rank of a policy in a journal; the smallest is first."""
BROKEN_OFF = "broken_off"
"""Key of the last line of a crashed or interrupted run, with the time."""


class JournalError(ConfigError):
    """Raised for a record that cannot be read; the message names the file, the line and the reason."""

    @classmethod
    def at(cls, path: str, line: int, reason: str) -> "JournalError":
        """Return the error with the place of the fault."""
        return cls(f"{path}, line {line}: {reason}")


@dataclass(frozen=True, slots=True)
class Header:
    """Deployment of a run, as far as it explains waiting; None means unknown. All files of a run share its
    `run`.
    """

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
    """Arrival of a request, with its prompt tokens and limit on new ones."""

    request_id: str
    time_s: float
    num_prompt_tokens: int
    max_tokens: int
    priority: int = 0
    tenant: str | None = None


class Chosen(NamedTuple):
    """Choice of a replica by the Router, with the figures at that time, as in
    `sundog.actors.messages.Routed`.
    """

    request_ids: tuple[str, ...]
    replica: int
    num_up: int
    num_requests: int
    fewest_requests: int
    most_requests: int
    num_hit_blocks: int | None = None
    most_other_hit_blocks: int | None = None


class Lost(NamedTuple):
    """Crash of an engine core that had these requests.

    Requests with a token, or in its batches, ended; the others begin again.
    """

    replica: int
    time_s: float
    request_ids: tuple[str, ...]
    in_batch: tuple[str, ...] = ()


class Admitted(NamedTuple):
    """Admission of a request, with its known and its prefix-hit tokens; `resumed` is true after a
    preemption.
    """

    request_id: str
    num_tokens: int
    num_hit_tokens: int
    resumed: bool


class Preempted(NamedTuple):
    """Loss of a request's blocks to `for_request`, which is the request itself if its own growth preempted
    it.

    None means not recorded. `cause` is `KV blocks`, `prefix-cache reset`, or `urgency` if the other was
    admitted in its place.
    """

    request_id: str
    for_request: str | None
    cause: str = "KV blocks"


class JournalEnd(NamedTuple):
    """End of a request that got a token in each of the first `num_tokens` steps of this output.

    `error` is the reason of the policy's refusal.
    """

    request_id: str
    reason: str
    num_tokens: int
    error: str | None = None


class Drafted(NamedTuple):
    """Verified drafts of a decoding request, and the accepted ones.

    `num_surplus` further ones were accepted behind the end of its answer.
    """

    request_id: str
    num_drafts: int
    num_accepted: int
    num_surplus: int = 0

    @property
    def num_sampled(self) -> int:
        """Drafts that the sampler accepted, including those behind the end of the answer."""
        return self.num_accepted + self.num_surplus


class JournalStep(NamedTuple):
    """Contents of one StepOutput: one step, or a run of decode steps."""

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
    """Ranks that the policy gave, as far as they became known."""
    num_free_blocks_planned: int | None = None
    """KV blocks that the (first) step's plan left, if a request was blocked."""
    drafts: tuple[Drafted, ...] = ()
    reached_s: tuple[tuple[str, float], ...] = ()
    """When requests of this step left the API processes of a simulated server."""
