"""The Scheduler's message to its listeners, once for each batch."""

from collections.abc import Sequence
from dataclasses import dataclass

from actors.core.batch import Batch, Blocked, Finish
from actors.core.blocks.kv_events import KvEvents
from actors.core.params.logprobs import PromptLogprobs, TokenLogprobs
from actors.core.queue.policy import RankValue


@dataclass(slots=True)
class StepOutput:
    """Scheduler tells AsyncLLM, the Recorder and other listeners what a batch brought.

    `replica` is the scheduler's number. `tokens` pairs request and new token, None where tokens are only
    counted: then each chunk of `batch` that samples and each decoding request got one token a step. `blocked`
    says what the next request in the queue lacked; the (first) step's plan left the two `…_planned` numbers,
    and took `num_taken_blocks`. At the end of the last step, before `num_freed_blocks` were given back,
    `num_free_blocks_held` were free, with those that steps planned ahead have taken by then.
    `ranks` are those that the policy gave to requests which began to wait, were next, or were admitted.
    `logprobs`, `prompt_logprobs` and `vectors` are the StepResult's.
    `accepted` pairs each request whose drafts were verified with the number of accepted ones, each of which
    is a token beside the one that it got; in `tokens` those of one request stand in order.
    `kv_events` are recorded if a router asks for them, and come with steps that do more than decode on.
    """

    replica: int
    batch: Batch
    start_s: float
    end_times_s: Sequence[float]
    tokens: tuple[tuple[str, int], ...] | None
    finished: tuple[Finish, ...]
    num_running: int
    num_waiting: int
    num_free_blocks: int
    blocked: Blocked | None = None
    num_free_blocks_planned: int | None = None
    num_waiting_planned: int = 0
    logprobs: tuple[tuple[str, TokenLogprobs], ...] = ()
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()
    accepted: tuple[tuple[str, int], ...] = ()
    ranks: tuple[tuple[str, RankValue], ...] = ()
    vectors: tuple[tuple[str, bytes], ...] = ()
    kv_events: KvEvents | None = None
    num_taken_blocks: int = 0
    num_free_blocks_held: int | None = None
    num_freed_blocks: int = 0

    @property
    def step(self) -> int:
        return self.batch.step

    @property
    def says_nothing(self) -> bool:
        """Return True if the step changed nothing that any listener acts on."""
        batch = self.batch
        is_heard = self.finished or self.ranks or self.kv_events or batch.num_tokens
        return not (is_heard or batch.finished or batch.preempted)
