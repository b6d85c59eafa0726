"""The state of one scheduler: its requests, its queues, and the KV space they share.

It has one owner. `plan` and `update` advance it from step to step; they and aborts consist of the
transitions of single requests here.

Laws: a request is waiting, running or gone. `running` is in order of admission. Every running request is
either in lockstep or in `catching_up`. Blocks are held by running requests, and by requests that are handed
over to another scheduler (`handover.py`).
"""

from dataclasses import replace

from sundog.actors.core.batch import Finish, FinishReason
from sundog.actors.core.blocks.kv_cache import KVCache
from sundog.actors.core.config import SchedulerConfig
from sundog.actors.core.policies.guard import GuardedPolicy
from sundog.actors.core.policies.orders import least_recompute
from sundog.actors.core.queue.lockstep import Lockstep
from sundog.actors.core.queue.policy import Policy, Refusal, defines
from sundog.actors.core.queue.step_times import StepTimes
from sundog.actors.core.queue.view import View
from sundog.actors.core.queue.waiting import WaitingQueue
from sundog.actors.core.request import Begun, Request, Status, Submit
from sundog.actors.core.step.cadence import PrefillCadence
from sundog.actors.core.step.draft import Draft
from sundog.actors.core.step.handover import KvHandovers


class SchedulerState:
    """The state of one scheduler: its queues, its KV cache and its policy.

    Without `lockstep_enabled` every step touches every request. With `decode_runs` a batch may stand for
    several decode steps, for backends that only count. A policy's random numbers depend on `seed`;
    `step_times` estimates the durations of steps for it.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        policy: Policy,
        kv: KVCache,
        *,
        lockstep_enabled: bool = True,
        decode_runs: bool = False,
        seed: int = 0,
        step_times: StepTimes | None = None,
    ) -> None:
        self.config = config
        self.policy = policy
        self.kv = kv
        self.requests: dict[str, Request] = {}
        self.lockstep = Lockstep(config.block_size, policy.token_weights)
        self.running: dict[str, Request] = {}
        self.step_times = step_times
        self.view = View(
            config, kv, lockstep=self.lockstep, running=self.running, seed=seed, step_times=step_times
        )
        self.waiting = WaitingQueue(policy, self.view, self.lockstep.service)
        self.view.show(self.waiting)
        self.prefills_first = policy.prefills_first
        if isinstance(policy, GuardedPolicy):
            policy.on_failure.append(self._policy_changed)
            policy.show(self.view)
            policy.on_failure.append(self.waiting.rank_anew)
        self.catching_up: dict[str, Request] = {}
        self.draft = Draft()
        """The step being planned, or the last one."""
        self.quota = policy.quota if defines(policy, "quota") else None
        self.refuse = policy.refuse if defines(policy, "refuse") else None
        self.on_admitted = policy.admitted if defines(policy, "admitted") else None
        self.on_finished = policy.finished if defines(policy, "finished") else None
        self.on_preempted = policy.preempted if defines(policy, "preempted") else None
        self.tells_sampled = defines(policy, "sampled")
        self.view.memory = policy.new_memory()
        self.choose_victim = least_recompute if config.victim == "least-recompute" else policy.victim
        self.preempts_last = config.victim == "policy" and not defines(policy, "victim")
        """Whether the victim is always the request that was admitted last."""
        self.leaves_uncomputed = config.leaves_uncomputed
        self.speculates = config.num_speculative_tokens > 0
        decisions = config.decisions
        self.goes_on_after_own_preemption = decisions.goes_on_after_own_preemption
        self.passes_over_unschedulable = decisions.passes_over_unschedulable
        self.registers_late = config.async_scheduling or (self.speculates and decisions.registers_drafted)
        """Whether blocks get their keys only from the result of the step that fills them."""
        is_held = decisions.holds_prefills and config.prefill_schedule_interval > 1
        self.cadence = PrefillCadence(config.prefill_schedule_interval) if is_held else None
        self.is_pipelined = config.pipeline_parallel_size > 1
        self.pauses = policy.pauses and self.quota is not None
        self.lockstep_enabled = lockstep_enabled and not (self.speculates or self.is_pipelined or self.pauses)
        """False with drafts, when requests get different numbers of tokens in a step, and in a pipeline or
        under a policy that pauses, when some requests get none.
        """
        self.decode_runs = decode_runs and self.lockstep_enabled and not self.tells_sampled
        self.finished_ids: list[str] = []
        """Requests that finished since the last plan; the next batch lists them for the runners."""
        self.reset_ids: list[str] = []
        """Requests that a reset preempted since the last plan; the next batch lists them for the runners."""
        self.admissions = 0
        self.handovers = KvHandovers()

    def _policy_changed(self, _reason: object) -> None:
        self.prefills_first = self.policy.prefills_first

    def arrive(self, submit: Submit) -> Finish | None:
        """Queue a new request, unless the router or the policy refuses it; return how it ended, if so."""
        request = self._new(submit)
        refusal = None
        if submit.refused is not None:
            refusal = Refusal(submit.refused, submit.retry_after_s)
        elif self.refuse is not None and submit.begun is None:
            refusal = self.refuse(request, self.view)
        if refusal is None:
            self._queue(request)
            return None
        request.status = Status.FINISHED
        request.shown = None
        # The runners know nothing of it; but so a plan is due, whose step's listeners are told of the end.
        self.finished_ids.append(request.request_id)
        return Finish(
            request.request_id,
            "refused",
            stop_reason=None,
            error=refusal.reason,
            retry_after_s=refusal.retry_after_s,
        )

    def add(self, submit: Submit) -> Request:
        """Queue a new request without calling the policy's `refuse`."""
        request = self._new(submit)
        self._queue(request)
        return request

    def admit(self, request: Request, step: int) -> None:
        """Run a request that has its blocks from `step` on, as the last in order."""
        if request.status is Status.WAITING and self.lockstep.service is not None:
            self.lockstep.service.admit(request)
        request.status = Status.RUNNING
        request.admission_step = step
        request.num_tokens_at_admission = request.num_tokens
        self.admissions += 1
        request.order = self.admissions
        self.running[request.request_id] = request
        self.catching_up[request.request_id] = request
        if self.on_admitted is not None:
            self.on_admitted(request, self.view)

    def settle(self, request: Request) -> None:
        """Store a running request's exact counts, and let the next step touch it."""
        if request.in_lockstep:
            self.lockstep.settle(request)
            self.catching_up[request.request_id] = request

    def preempt(self, request: Request) -> None:
        """Free a running request's blocks and queue it again with its tokens."""
        self._stop_running(request, returns=True)
        request.status = Status.PREEMPTED
        request.num_computed_tokens = 0
        request.num_drafts = request.num_loaded_tokens = 0
        request.num_preemptions += 1
        # As long as some of it is to be dropped, so is the rest, as in vLLM. A first token that is in flight
        # is of no use without the blocks that were to be handed over: the prompt is computed again.
        if request.dropped_through > self.lockstep.done or request.submit.hands_over:
            self._drop(request)
        if self.on_preempted is not None:
            self.on_preempted(request, self.view)
        self.waiting.put_back(request)

    def finish(self, request: Request) -> None:
        """Remove a running or waiting request; its blocks are free at once."""
        if self.on_finished is not None:
            self.on_finished(request, self.view)
        if request.status is Status.RUNNING:
            self._stop_running(request)
        else:
            self.waiting.discard(request)
            if self.handovers.fetching.pop(request.request_id, None) is not None:
                self.handovers.hand(request, self.kv)  # its blocks are still being written
            elif request.block_ids:
                self.kv.release(request)
        self._forget(request)

    def hand_over(self, request: Request) -> None:
        """Remove a running request, except for its blocks, which are kept until they are fetched."""
        if self.on_finished is not None:
            self.on_finished(request, self.view)
        self._stop_running(request, keeps=True)
        self.handovers.hand(request, self.kv)
        self._forget(request)

    def move_on(self, request: Request, keeps_kv: bool) -> Finish | None:
        """Hand over a request that is to continue on another engine; None while that is not possible.

        A running request must have sampled a token since its admission, so that all its tokens but the last
        are computed, and have a slot for the last one; its tokens in flight are discarded. A waiting request
        has no blocks and nothing in flight.
        """
        runs, has_run = request.status is Status.RUNNING, request.status is not Status.WAITING
        if runs:
            num_tokens = self.lockstep.num_tokens(request)
            num_slots = len(request.block_ids) * self.kv.block_size
            if num_tokens == request.num_tokens_at_admission or num_slots < num_tokens:
                return None
            self.settle(request)
        elif request.block_ids or request.num_in_flight or request.last_step > self.lockstep.done:
            return None
        elif has_run and request.waiting_since > self.lockstep.done:
            return None  # a step that is not done says that it was preempted
        submit, known = request.submit, request.token_ids
        begun = Begun(
            request.num_output_tokens,
            None if known is None else tuple(known[submit.num_prompt_tokens :]),
            has_run=has_run,
            first_token_s=request.first_token_s,
            last_token_s=request.last_token_s,
        )
        blocks: tuple[int, ...] = ()
        if runs and keeps_kv:
            blocks = tuple(request.block_ids[: self.kv.num_blocks(request.num_tokens)])
            self.hand_over(request)
        else:
            self.finish(request)
        moves = replace(submit, begun=begun, has_remote_kv=runs and keeps_kv)
        return Finish(request.request_id, "handed", moves=moves, block_ids=blocks)

    def pull(self, submit: Submit) -> None:
        """Let a request wait for blocks, to fetch a prompt that another scheduler has handed over."""
        self.handovers.pulls[submit.request_id] = self._new(submit)

    def fetched(self, request_ids: tuple[str, ...]) -> None:
        """Free fetched blocks that this scheduler handed over, and queue requests that received theirs."""
        for request in self.handovers.fetched(request_ids, self.kv):
            self._queue(request)

    def loaded(self, request_id: str) -> None:
        """End the oldest load from the host's memory: its request may be admitted."""
        assert self.kv.host is not None, "there is host memory"
        self.kv.host.loaded()
        for request in self.handovers.fetched((request_id,), self.kv):
            self.kv.register(request, request.num_computed_tokens)

    @property
    def has_fetched(self) -> bool:
        """Whether waiting requests hold fetched blocks; if no request runs, only these can free blocks."""
        fetching = self.handovers.fetching
        return any([request.block_ids and request.request_id not in fetching for request in self.waiting])

    def _forget(self, request: Request) -> None:
        request.status = Status.FINISHED
        request.shown = None
        del self.requests[request.request_id]
        self.finished_ids.append(request.request_id)
        # Another request may take its id before these results come back.
        self.lockstep.drop(request.request_id)

    def abort(self, request_ids: tuple[str, ...], reason: FinishReason = "abort") -> list[Finish]:
        """End requests, running or waiting; return those that had not ended.

        Unknown ids are ignored, and a repeated id ends its request once.
        """
        alive = [self.requests[name] for name in dict.fromkeys(request_ids) if name in self.requests]
        for request in alive:
            self.finish(request)
        return [Finish(request.request_id, reason) for request in alive]

    def reset_prefix_cache(self, *, reset_running: bool = False) -> bool:
        """Clear the prefix cache; False while blocks are held.

        With `reset_running` all running requests are preempted first, and their tokens in flight are
        discarded.
        """
        if reset_running:
            for request in reversed(list(self.running.values())):
                self.preempt(request)
                self.reset_ids.append(request.request_id)
                self._drop(request)
        return self.kv.pool.forget_all()

    def begin_anew(self) -> None:
        """Reset an idle engine: clear blocks kept for other engines, and those in host memory."""
        self.handovers.forget(self.kv)
        if self.kv.host is not None:
            self.kv.host.forget_all()

    def check(self) -> None:
        """Verify the laws of this record and of the pool. O(blocks + requests)."""
        holders = dict.fromkeys([*self.requests.values(), *self.handovers.holders])
        self.kv.pool.check([request.block_ids for request in holders])
        if self.kv.host is not None:
            self.kv.host.check()
        for name, request in self.requests.items():
            runs, waits = name in self.running, request in list(self.waiting)
            assert runs != waits, f"{request} is in {'both' if runs else 'no'} queue"
            assert runs == (name in self.catching_up) + (name in self.lockstep.members), request
            may_hold = runs or (request.submit.has_remote_kv and not request.num_preemptions)
            may_hold = may_hold or bool(request.num_loaded_tokens)
            assert may_hold or not request.block_ids, f"{request} holds blocks while it waits"
            if runs:
                computed = self.lockstep.num_computed(request)
                spare = self.kv.num_blocks(computed + 2 * self.config.num_speculative_tokens)
                if request.num_loaded_tokens:  # it took blocks for all that it knew
                    spare = max(spare, self.kv.num_blocks(request.num_tokens_at_admission))
                assert self.kv.num_blocks(computed) <= len(request.block_ids) <= spare, request
            if request.token_ids is not None:
                assert len(request.token_ids) == self.lockstep.num_tokens(request), request
        orders = [request.order for request in self.running.values()]
        assert orders == sorted(orders), "running requests are out of order"

    def _new(self, submit: Submit) -> Request:
        if submit.request_id in self.requests:
            raise ValueError(f"request {submit.request_id!r} exists already: ids must be unique")
        return Request(submit, self.config.max_model_len)

    def _drop(self, request: Request) -> None:
        """Discard a request's steps in flight, so that it can run again at once."""
        request.dropped_through = max(request.dropped_through, request.last_step)
        request.num_in_flight = request.last_step = 0
        self.lockstep.drop(request.request_id)

    def _queue(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self.waiting.push(request)

    def _stop_running(self, request: Request, *, returns: bool = False, keeps: bool = False) -> None:
        if request.in_lockstep:
            self.lockstep.settle(request)
        else:
            del self.catching_up[request.request_id]
        # Under async scheduling the last computed tokens may be ones that are not known yet.
        unknown = request.num_in_flight if self.is_pipelined else bool(request.num_in_flight)
        known = request.num_computed_tokens - self.config.async_scheduling * unknown
        if self.speculates:
            known = min(known, request.num_tokens_planned)
        self.kv.register(request, known)
        self.kv.offload(request, request.num_registered_blocks, self.view.now_s, is_whole=True)
        del self.running[request.request_id]
        request.decodes_on_wire = False
        if not keeps:
            self.kv.release(request, returns=returns)
