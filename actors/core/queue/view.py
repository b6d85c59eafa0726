"""Facts that a policy may read besides the requests; all are of the past."""

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import Any, Protocol

from sundog.actors.core.chance import drawn
from sundog.actors.core.config import SchedulerConfig
from sundog.actors.core.queue.lockstep import Lockstep
from sundog.actors.core.queue.step_times import StepTimes
from sundog.actors.core.request import Request, Status


class Queue(Protocol):
    """Waiting requests, the next one first."""

    def __iter__(self) -> Iterator[Request]: ...

    def __len__(self) -> int: ...


class Pool(Protocol):
    """Counts of KV blocks; `num_blocks` includes the null block."""

    @property
    def num_blocks(self) -> int: ...

    @property
    def num_free(self) -> int: ...


class Blocks(Protocol):
    """KV blocks held by requests, and their prefix-cache hits."""

    @property
    def pool(self) -> Pool: ...

    @property
    def block_size(self) -> int: ...

    def find_hit(self, request: Request) -> Sequence[int]: ...

    def num_shared_blocks(self, request: Request) -> int: ...


class View:
    """The state of one scheduler, read-only, as policies see it.

    It is exact at any moment between two steps. Policies receive it as an argument.

    Example:
        >>> import sundog
        >>> class Patient(sundog.Policy):
        ...     is_dynamic = True
        ...     def rank(self, request, view):
        ...         return (view.num_waited_steps(request) < 200, request.submit.num_prompt_tokens)
        >>> run = sundog.replay(
        ...     "traces/chat-poisson-2rps-5min.jsonl.gz", limit=9, policy=Patient,
        ... )
        >>> run.figures["num_finished"]
        9
    """

    __slots__ = (
        "_kv",
        "_lockstep",
        "_running",
        "_seed",
        "_step_times",
        "_waiting",
        "limits",
        "memory",
        "now_s",
        "num_memory_changes",
    )

    def __init__(
        self,
        limits: SchedulerConfig,
        kv: Blocks,
        lockstep: Lockstep,
        running: dict[str, Request],
        seed: int = 0,
        step_times: StepTimes | None = None,
    ) -> None:
        self.limits = limits
        """Configuration of the engine: `max_num_seqs`, `max_num_batched_tokens`, `num_gpu_blocks`, ..."""
        self._kv = kv
        self._lockstep = lockstep
        self._running = running
        self._waiting: Queue = ()
        self._seed = seed
        self._step_times = step_times
        self.now_s = 0.0
        """Time of the run in seconds: the earliest begin of the planned step, or the end of the last one."""
        self.memory: Any = None
        """Memory of the policy (`Policy.new_memory`), of a type that its author chooses."""
        self.num_memory_changes = 0
        """Number of policy calls so far that may have changed its memory."""

    def show(self, waiting: Queue) -> None:
        """Set the waiting requests that policies can read; the scheduler calls this once."""
        self._waiting = waiting

    def advance(self, now_s: float) -> None:
        """Set the time. The Scheduler sets `now_s` itself, before each step."""
        self.now_s = now_s

    @property
    def step(self) -> int:
        """Number of the step being planned, or of the next one."""
        return self._lockstep.planned + 1

    def is_past(self, time_s: float) -> bool:
        """Return whether `now_s` has reached a time."""
        return self.now_s >= time_s

    def has_waited(self, request: Request, num_steps: int) -> bool:
        """Return whether the request has waited for at least `num_steps` steps."""
        return self.num_waited_steps(request) >= num_steps

    @property
    def running(self) -> Mapping[str, Request]:
        """Running requests by id, in order of admission."""
        return MappingProxyType(self._running)

    @property
    def waiting(self) -> tuple[Request, ...]:
        """Waiting requests, the next one first. O(n log n)."""
        return tuple(self._waiting)

    @property
    def num_waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._waiting)

    @property
    def num_free_blocks(self) -> int:
        """Number of blocks that no request holds; the prefix cache may still find their contents."""
        return self._kv.pool.num_free

    def step_s(self, prefill_tokens: int, decodes: int) -> float | None:
        """Estimate how long a step takes.

        In simulation the cost model answers, with the mean context of the running requests for each decode;
        on a server a fit to measured steps does.

        Args:
            prefill_tokens: Prompt tokens in the step.
            decodes: Decoding requests in the step.

        Returns:
            Seconds; None before anything was measured.
        """
        if self._step_times is None:
            return None
        pool, num_running = self._kv.pool, len(self._running)
        held = (pool.num_blocks - 1 - pool.num_free) * self._kv.block_size
        context = decodes * held // num_running if num_running else decodes
        return self._step_times.step_s(prefill_tokens, decodes, context)

    def random(self, *key: Request | str | int) -> float:
        """Return a number in [0, 1) that depends only on the run's seed and this key.

        Args:
            *key: Requests, texts or numbers.

        Returns:
            The same number for the same key, however often and in whichever order it is called.
        """
        names = [part.request_id if isinstance(part, Request) else part for part in key]
        return drawn(self._seed, names)

    def first_token_s(self, request: Request) -> float | None:
        """Return when the request got its first token, in seconds; None before."""
        return request.first_token_s

    def last_token_s(self, request: Request) -> float | None:
        """Return when the request got its latest token, in seconds; None before the first."""
        return self._lockstep.last_token_s(request)

    def token_due_s(self, request: Request) -> float:
        """Return when the request's next token is due by its limits.

        The first token is due `slo_ttft_s` after the arrival. Each later one is due `slo_tpot_s` after the
        previous one was due, or after the first token if there is no limit on it. All are due by `slo_e2e_s`.

        Args:
            request: A waiting or running request.

        Returns:
            Seconds on the run's clock; infinite without limits.
        """
        submit, num_tokens = request.submit, self.num_output_tokens(request)
        due_s, first_s = inf, request.first_token_s
        if submit.slo_ttft_s is not None:
            first_s = submit.arrival_s + submit.slo_ttft_s
            due_s = first_s if num_tokens == 0 else inf
        if num_tokens and submit.slo_tpot_s is not None and first_s is not None:
            due_s = first_s + num_tokens * submit.slo_tpot_s
        return due_s if submit.slo_e2e_s is None else min(due_s, submit.arrival_s + submit.slo_e2e_s)

    def num_output_tokens(self, request: Request) -> int:
        """Return the number of output tokens of the request so far."""
        return self._lockstep.num_tokens(request) - request.submit.num_prompt_tokens

    def num_computed_tokens(self, request: Request) -> int:
        """Return the number of computed tokens of the request, including those of a planned step."""
        return self._lockstep.num_computed(request)

    def num_new_tokens(self, request: Request) -> int:
        """Return the number of output tokens since the latest admission; 0 for a waiting request."""
        if request.status is not Status.RUNNING:
            return 0
        return self._lockstep.num_tokens(request) - request.num_tokens_at_admission

    def num_waited_steps(self, request: Request) -> int:
        """Return the number of steps of the current wait, or of the latest wait of a running request."""
        runs = request.status is Status.RUNNING
        return (request.admission_step if runs else self.step) - request.waiting_since

    def num_hit_tokens(self, request: Request) -> int:
        """Return how many tokens of a waiting request the prefix cache has. O(hit)."""
        return len(self._kv.find_hit(request)) * self._kv.block_size

    def num_lost_tokens(self, request: Request) -> int:
        """Return how many computed tokens a preemption of the request would lose. O(shared blocks)."""
        shared = self._kv.num_shared_blocks(request) * self._kv.block_size
        return max(self._lockstep.num_computed(request) - shared, 0)

    def service(self, tenant: str | None) -> float:
        """Return the weighted tokens that a tenant has received.

        A tenant that returns after an absence is lifted to the level of the others.

        Args:
            tenant: Name of the tenant; None for requests without one.

        Returns:
            The weighted sum of prompt and output tokens.

        Raises:
            LookupError: The policy has no `token_weights`.
        """
        service = self._lockstep.service
        if service is None:
            raise LookupError("service is not counted: the policy defines no token_weights")
        return service.of(tenant)
