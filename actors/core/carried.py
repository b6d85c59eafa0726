"""Adapter that runs a Sundog policy beside a foreign scheduler, such as vLLM's.

The foreign scheduler has its own requests and blocks, and plans its own steps. Here each of its requests has
a Sundog record, so that the policy gets the same arguments as in Sundog. `sundog export` puts this into
vLLM's scheduler. Law: called at the same moments with the same state, a policy decides as in Sundog's own
scheduler.
"""

from collections.abc import Collection, Mapping
from operator import attrgetter
from typing import Protocol

from sundog.actors.core.config import SchedulerConfig
from sundog.actors.core.policies.guard import GuardedPolicy, ask_each
from sundog.actors.core.queue.lockstep import Lockstep
from sundog.actors.core.queue.policy import Policy, Refusal, defines, gives_keys
from sundog.actors.core.queue.step_times import MeasuredSteps
from sundog.actors.core.queue.view import Blocks, View
from sundog.actors.core.queue.waiting import WaitingQueue
from sundog.actors.core.request import Request, Status, Submit
from sundog.actors.core.step.progress import MAX_EMPTY_STEPS, cannot_go_on


class Foreign(Protocol):
    """Record of a request in the foreign scheduler."""

    @property
    def num_tokens(self) -> int:
        """Number of known tokens."""
        ...

    @property
    def num_computed_tokens(self) -> int:
        """Number of computed tokens, including those of planned steps."""
        ...


class ForeignCounts(Lockstep):
    """Lockstep without members: every count comes from the foreign scheduler."""

    __slots__ = ("foreign", "last_s")

    def __init__(self, block_size: int, token_weights: tuple[float, float] | None) -> None:
        super().__init__(block_size, token_weights)
        self.foreign: dict[str, Foreign] = {}
        self.last_s: dict[str, float] = {}
        """Time of each request's latest token, in seconds."""

    def last_token_s(self, request: Request) -> float | None:
        """Return the time of the request's latest token, in seconds; None before its first."""
        return self.last_s.get(request.request_id)

    def num_tokens(self, request: Request) -> int:
        """Return the number of known tokens of any request."""
        foreign = self.foreign.get(request.request_id)
        return request.num_tokens if foreign is None else foreign.num_tokens

    def num_computed(self, request: Request) -> int:
        """Return the request's computed tokens, including those of planned steps."""
        foreign = self.foreign.get(request.request_id)
        return request.num_computed_tokens if foreign is None else foreign.num_computed_tokens


class PassingQueue(WaitingQueue):
    """Queue whose head may be admitted after it was passed over."""

    __slots__ = ()

    @property
    def has_next(self) -> bool:
        """Whether a request waits that is not passed over; does not call the policy."""
        return len(self.places) > len(self._passed)

    def leave(self, request: Request) -> None:
        """Remove the request, passed over or not, if it waits."""
        self._passed.pop(request.request_id, None)
        self.discard(request)


class CarriedPolicy:
    """A foreign scheduler's requests in the form that `policy` needs, and the policy's decisions.

    The scheduler reports the begin and end of each step, and each request that arrives, begins to run, is
    preempted, gets tokens, or ends.
    """

    def __init__(self, policy: Policy, limits: SchedulerConfig, blocks: Blocks, seed: int = 0) -> None:
        self.policy = policy
        self.limits = limits
        self._blocks = blocks
        self.counts = ForeignCounts(limits.block_size, policy.token_weights)
        self.running: dict[str, Request] = {}
        self.requests: dict[str, Request] = {}
        self.measured = MeasuredSteps()
        self.view = View(
            limits, blocks, lockstep=self.counts, running=self.running, seed=seed, step_times=self.measured
        )
        self.waiting = PassingQueue(policy, self.view, self.counts.service)
        self.view.show(self.waiting)
        self.view.memory = policy.new_memory()
        if isinstance(policy, GuardedPolicy):
            policy.show(self.view)
            policy.on_failure.append(self.waiting.rank_anew)
        self.has_quotas = defines(policy, "quota")
        self.has_victims = defines(policy, "victim")
        self._refuses = defines(policy, "refuse")
        self._is_told_admitted = defines(policy, "admitted")
        self._is_told_sampled = defines(policy, "sampled")
        self._is_told_preempted = defines(policy, "preempted")
        self._is_told_finished = defines(policy, "finished")
        self.measures_steps = isinstance(policy, GuardedPolicy)
        """Whether the policy may read token times and step durations, as a user's policy may."""
        self._has_keys = gives_keys(policy)
        self._admissions = 0
        self._num_empty_steps = 0
        self.quotas: dict[str, int] = {}
        """Quotas of running requests for the step being planned."""
        self._without_token: dict[str, None] = {}
        self._preempted: dict[str, None] = {}

    # --- steps -----------------------------------------------------------------------------------

    @property
    def follows_tokens(self) -> bool:
        """Whether tokens must be counted after each step, because a token after a preemption may change a
        key.
        """
        return (
            self.measures_steps
            or self.counts.service is not None
            or (self._has_keys and bool(self._preempted))
        )

    def begin_step(self, now_s: float) -> None:
        """Begin to plan a step."""
        self.view.advance(now_s)
        self.waiting.rerank()

    def planned(self, num_tokens: int) -> None:
        """Record a planned step; a user's policy fails after too many steps in a row without tokens."""
        self.counts.planned += 1
        self._num_empty_steps = 0 if num_tokens or not self.requests else self._num_empty_steps + 1
        if self._num_empty_steps > MAX_EMPTY_STEPS and isinstance(self.policy, GuardedPolicy):
            if self.policy.failure is None and self._cannot_go_on() is None:
                self.policy.stalled(f"{len(self.requests)} requests get nothing, step after step")
            self._num_empty_steps = 0

    def _cannot_go_on(self) -> str | None:
        return cannot_go_on(self.requests, self.counts, self._blocks, self.limits.max_model_len)

    def end_step(self, now_s: float, given: Mapping[str, int]) -> None:
        """End the oldest step, which gave requests these numbers of tokens; their counts are up to date.

        Costs no loop in Python, unless the policy counts service or handles tokens.
        """
        self.view.advance(now_s)
        counts, requests = self.counts, self.requests
        counts.done_s = now_s
        counts.last_s.update(dict.fromkeys(given, now_s))
        if self._without_token:
            for name in self._without_token.keys() & given.keys():
                requests[name].first_token_s = now_s
                del self._without_token[name]
        if counts.service is not None:
            for name, num_tokens in given.items():
                for _ in range(num_tokens):
                    counts.service.sample(requests[name])
        if self._preempted:
            for name in [name for name in given if name in self._preempted]:
                self.waiting.renew(requests[name])
        if self._is_told_sampled:
            told = sorted([requests[name] for name in given], key=attrgetter("order"))
            ask_each(self.policy, "sampled", told, self.view)

    # --- requests --------------------------------------------------------------------------------

    def arrive(self, submit: Submit, foreign: Foreign, now_s: float) -> Refusal | None:
        """Queue a new request, unless the policy refuses it."""
        self.view.advance(now_s)
        request = Request(submit, self.limits.max_model_len)
        self.counts.foreign[submit.request_id] = foreign
        refusal = self.policy.refuse(request, self.view) if self._refuses else None
        if refusal is not None:
            request.status, request.shown = Status.FINISHED, None
            del self.counts.foreign[submit.request_id]
            return refusal
        self.requests[submit.request_id] = request
        self._without_token[submit.request_id] = None
        self.waiting.push(request)
        return None

    def admit(self, name: str) -> None:
        """Move a waiting request to the end of the running ones, from the step being planned."""
        request = self.requests[name]
        self.waiting.note_rank(request)
        self.waiting.leave(request)
        if request.status is Status.WAITING and self.counts.service is not None:
            self.counts.service.admit(request)
        request.status = Status.RUNNING
        request.admission_step = self.view.step
        request.num_tokens_at_admission = self.counts.num_tokens(request)
        self._preempted.pop(name, None)
        self._admissions += 1
        request.order = self._admissions
        self.running[name] = request
        if self._is_told_admitted:
            self.policy.admitted(request, self.view)
        self.waiting.rerank()
        self.waiting.take_ranks()

    def preempt(self, name: str) -> None:
        """Queue a running request again after it lost its blocks."""
        request = self.running.pop(name)
        request.status = Status.PREEMPTED
        request.num_preemptions += 1
        self._preempted[name] = None
        if self._is_told_preempted:
            self.policy.preempted(request, self.view)
        self.waiting.put_back(request)

    def finish(self, name: str) -> None:
        """Remove a request that ended in any state."""
        request = self.requests[name]
        if self._is_told_finished:
            self.policy.finished(request, self.view)
        if self.running.pop(name, None) is None:
            self.waiting.leave(request)
        request.status, request.shown = Status.FINISHED, None
        request.num_tokens = self.counts.num_tokens(request)
        request.num_computed_tokens = self.counts.num_computed(request)
        del self.requests[name], self.counts.foreign[name]
        for kept in (self._without_token, self._preempted, self.counts.last_s):
            kept.pop(name, None)

    # --- questions -------------------------------------------------------------------------------

    def ask_quotas(self, prefills: Collection[str]) -> None:
        """Call `quota` for running requests before a step is planned, including decodes if the policy
        `pauses`.
        """
        running = self.running
        asked = list(running.values()) if self.policy.pauses else [running[name] for name in prefills]
        answers = zip(asked, ask_each(self.policy, "quota", asked, self.view), strict=True)
        quotas = [(request.request_id, quota) for request, quota in answers if quota is not None]
        self.quotas = {name: quota for name, quota in quotas if quota == 0 or name in prefills}

    def within_quota(self, name: str, num_tokens: int, num_wanted: int) -> int:
        """Return how many of `num_tokens` a request may compute; `num_wanted` is its demand if it waits."""
        if name in self.running:
            quota: int | None = self.quotas.get(name)
        elif num_wanted > 1 or self.policy.pauses:
            quota = self.policy.quota(self.requests[name], self.view)
        else:
            quota = None
        return num_tokens if quota is None else min(num_tokens, quota)

    def victim(self) -> str:
        """Return the running request to preempt, since blocks ran out."""
        return self.policy.victim(self.running, self.view).request_id
