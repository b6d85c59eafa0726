"""A policy beside a scheduler that is not ours: what it sees there, its queue, and when it is asked.

The foreign scheduler has its own requests and its own blocks, and plans its own steps. Here each of its
requests has a record of ours, so that the policy is handed what it is handed at home. `sundog export` puts
this into vLLM's scheduler. Law: asked at the same moments about the same state, a policy answers as it does
in Sundog's own.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from actors.core.config import SchedulerConfig
from actors.core.policies.guard import GuardedPolicy
from actors.core.queue.lockstep import Lockstep
from actors.core.queue.policy import Policy, Refusal, defines
from actors.core.queue.step_times import MeasuredSteps
from actors.core.queue.view import Blocks, View
from actors.core.queue.waiting import WaitingQueue
from actors.core.request import Request, Status, Submit
from actors.core.step.progress import MAX_EMPTY_STEPS


class Foreign(Protocol):
    """The foreign scheduler's own record of a request."""

    @property
    def num_tokens(self) -> int:
        """The number of its known tokens."""
        ...

    @property
    def num_computed_tokens(self) -> int:
        """Tokens that are computed, those of planned steps included."""
        ...


class ForeignCounts(Lockstep):
    """A lockstep without members: every count is the foreign scheduler's."""

    __slots__ = ("foreign",)

    def __init__(self, block_size: int, token_weights: tuple[float, float] | None) -> None:
        super().__init__(block_size, token_weights)
        self.foreign: dict[str, Foreign] = {}

    def num_tokens(self, request: Request) -> int:
        """Known tokens of any request."""
        foreign = self.foreign.get(request.request_id)
        return request.num_tokens if foreign is None else foreign.num_tokens

    def num_computed(self, request: Request) -> int:
        """Computed tokens of any request, planned steps included."""
        foreign = self.foreign.get(request.request_id)
        return request.num_computed_tokens if foreign is None else foreign.num_computed_tokens


class PassingQueue(WaitingQueue):
    """A queue whose head may be admitted after it was passed over."""

    __slots__ = ()

    def leave(self, request: Request) -> None:
        """Remove the request, if it waits, passed over or not."""
        self._passed.pop(request.request_id, None)
        self.discard(request)


class CarriedPolicy:
    """The requests of a foreign scheduler as `policy` sees them, and its answers.

    The scheduler tells of each step when it begins and ends, and of each request when it arrives, begins to
    run, is preempted, was given tokens, and ends.
    """

    def __init__(self, policy: Policy, limits: SchedulerConfig, blocks: Blocks, seed: int = 0) -> None:
        self.policy = policy
        self.limits = limits
        self.counts = ForeignCounts(limits.block_size, policy.token_weights)
        self.running: dict[str, Request] = {}
        self.requests: dict[str, Request] = {}
        self.measured = MeasuredSteps()
        self.view = View(limits, blocks, self.counts, self.running, seed, self.measured)
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
        self._is_told_finished = defines(policy, "finished")
        self.follows_tokens = isinstance(policy, GuardedPolicy) or self.counts.service is not None
        """Whether it is to be told who was given tokens: a user's policy may ask when."""
        self._admissions = 0
        self._num_empty_steps = 0
        self._quotas: dict[str, int | None] = {}

    # --- steps -----------------------------------------------------------------------------------

    def begin_step(self, now_s: float) -> None:
        """A step is about to be planned."""
        self.view.advance(now_s)
        self.waiting.rerank()
        if self.has_quotas:
            self._quotas.clear()

    def planned(self, num_tokens: int) -> None:
        """A step was planned; where too many in a row compute nothing, a user's policy has failed."""
        self.counts.planned += 1
        self._num_empty_steps = 0 if num_tokens or not self.requests else self._num_empty_steps + 1
        if self._num_empty_steps > MAX_EMPTY_STEPS and isinstance(self.policy, GuardedPolicy):
            if self.policy.failure is None:
                self.policy.stalled(f"{len(self.requests)} requests get nothing, step after step")
            self._num_empty_steps = 0

    def end_step(self, now_s: float, given: Sequence[tuple[str, int]]) -> None:
        """The oldest step has ended, and has given tokens to requests: their counts are up to date."""
        self.view.advance(now_s)
        self.counts.done_s = now_s
        service, requests = self.counts.service, self.requests
        for name, num_tokens in given:
            request = requests[name]
            request.last_token_s = now_s
            if request.first_token_s is None:
                request.first_token_s = now_s
            if service is not None:
                for _ in range(num_tokens):
                    service.sample(request)
            if request.status is Status.PREEMPTED:
                self.waiting.renew(request)
        if self._is_told_sampled:
            for request in sorted([self.requests[name] for name, _ in given], key=_order):
                self.policy.sampled(request, self.view)

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
        self.waiting.push(request)
        return None

    def admit(self, name: str) -> None:
        """A waiting request runs from the step on that is being planned, last in the list."""
        request = self.requests[name]
        self.waiting.note_rank(request)
        self.waiting.leave(request)
        if request.status is Status.WAITING and self.counts.service is not None:
            self.counts.service.admit(request)
        request.status = Status.RUNNING
        request.admission_step = self.view.step
        request.num_tokens_at_admission = self.counts.num_tokens(request)
        self._admissions += 1
        request.order = self._admissions
        self.running[name] = request
        if self._is_told_admitted:
            self.policy.admitted(request, self.view)
        self.waiting.rerank()
        self.waiting.take_ranks()

    def preempt(self, name: str) -> None:
        """A running request has lost its blocks and waits again."""
        request = self.running.pop(name)
        request.status = Status.PREEMPTED
        request.num_preemptions += 1
        self.waiting.put_back(request)

    def finish(self, name: str) -> None:
        """A request has ended, whatever its state."""
        request = self.requests[name]
        if self._is_told_finished:
            self.policy.finished(request, self.view)
        if self.running.pop(name, None) is None:
            self.waiting.leave(request)
        request.status, request.shown = Status.FINISHED, None
        request.num_tokens = self.counts.num_tokens(request)
        request.num_computed_tokens = self.counts.num_computed(request)
        del self.requests[name], self.counts.foreign[name]

    # --- questions -------------------------------------------------------------------------------

    def ask_quotas(self, pending: Iterable[tuple[str, int]]) -> None:
        """Ask for quotas of running requests, each with the tokens to compute, before a step is planned."""
        for name, num_tokens in pending:
            if num_tokens > 1 or (num_tokens == 1 and self.policy.pauses):
                quota = self.policy.quota(self.running[name], self.view)
                self._quotas[name] = quota if num_tokens > 1 or quota == 0 else None

    def within_quota(self, name: str, num_tokens: int, num_wanted: int) -> int:
        """The tokens that a request may compute of `num_tokens`; it would want `num_wanted`, if it waits."""
        if name in self.running:
            quota = self._quotas.get(name)
        elif num_wanted > 1 or self.policy.pauses:
            quota = self.policy.quota(self.requests[name], self.view)
        else:
            quota = None
        return num_tokens if quota is None else min(num_tokens, quota)

    def victim(self) -> str:
        """The running request to preempt, as blocks have run out."""
        return self.policy.victim(self.running, self.view).request_id


def _order(request: Request) -> int:
    return request.order
