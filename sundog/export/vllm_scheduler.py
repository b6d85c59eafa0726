"""Scheduler of vLLM 0.32 or 0.33 under a Sundog policy; `sundog export` copies it into one file.

Runs inside vLLM, and imports only the pure core of Sundog. vLLM plans, and calls the policy for its choices:
the next request (the queue `waiting`), the victim (when blocks cannot be allocated), and the tokens of a
request (where vLLM limits the chunk of a prefill). Sundog itself does not import it.
"""

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, takewhile
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import RequestQueue, SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.request import RequestStatus

from sundog.actors.core import config as sundog_config
from sundog.actors.core import policies as sundog_policies
from sundog.actors.core import request as sundog_request
from sundog.actors.core.carried import CarriedPolicy
from sundog.actors.core.params.sampling import Adapter
from sundog.actors.core.policies.guard import GuardedPolicy, guarded

SECONDS = ("slo_ttft_s", "slo_tpot_s", "slo_e2e_s")
FACTS: dict[str, Any] = {
    "tenant": str,
    "session": str,
    "predicted_tokens": int,
    **dict.fromkeys(SECONDS, float),
}
"""Fields of a Sundog request that vLLM's requests lack: clients send them in `vllm_xargs`."""
log = logging.getLogger("vllm.sundog")


class VllmBlocks:
    """vLLM's KV cache in the form of a View."""

    def __init__(self, manager: Any, block_size: int, num_blocks: int) -> None:
        self._manager = manager
        self.foreign: dict[str, Any] = {}
        """vLLM's own records of requests."""
        self.pool = self
        self.block_size, self.num_blocks = block_size, num_blocks
        self.pinned: int | None = None
        """Number of free blocks at an earlier moment, reported to the policy later."""

    @property
    def num_free(self) -> int:
        """Number of blocks that no request holds."""
        free: int = self._manager.block_pool.get_num_free_blocks()
        return free if self.pinned is None else self.pinned

    def find_hit(self, request: sundog_request.Request) -> range:
        """Return a range as long as the request's prefix hit, in blocks."""
        _, num_tokens, *_ = self._manager.get_computed_blocks(self.foreign[request.request_id])
        return range(num_tokens // self.block_size)

    def num_shared_blocks(self, request: sundog_request.Request) -> int:
        """Return the number of a running request's first blocks that others hold, too."""
        blocks = self._manager.get_blocks(request.request_id).blocks[0]
        return sum(1 for _ in takewhile(lambda block: block.ref_cnt > 1, blocks))


class PolicyQueue(RequestQueue):  # type: ignore[misc]
    """Waiting requests in the policy's order, computed when vLLM reads the head.

    So no request is ranked while all running slots are taken. vLLM removes the head before it decides whether
    to run or to skip it. Until then the request counts as skipped; it leaves the queue once it runs.
    """

    def __init__(self, carried: CarriedPolicy) -> None:
        self._carried = carried
        self._taken: Any = None

    def settle(self) -> None:
        """Record what happened to the last removed request."""
        taken, self._taken = self._taken, None
        if taken is not None and taken.status == RequestStatus.RUNNING:
            self._carried.admit(taken.request_id)

    def _head(self) -> Any:
        self.settle()
        request = self._carried.waiting.peek()
        return None if request is None else self._carried.counts.foreign[request.request_id]

    def add_request(self, request: Any) -> None:
        """Do nothing: `CarriedPolicy.arrive` has queued it."""

    def peek_request(self) -> Any:
        if (request := self._head()) is None:
            raise IndexError("peek from an empty queue")
        return request

    def pop_request(self) -> Any:
        self._taken = self.peek_request()
        self._carried.waiting.pass_over()
        return self._taken

    def prepend_request(self, request: Any) -> None:
        """Queue a preempted request again."""
        request.priority = 0
        self._carried.preempt(request.request_id)

    def prepend_requests(self, requests: Any) -> None:
        """Queue requests again that a step skipped."""
        self.settle()
        self._carried.waiting.rewind()

    def remove_request(self, request: Any) -> None:
        """Do nothing: `CarriedPolicy.finish` removes it."""

    def remove_requests(self, requests: Iterable[Any]) -> None:
        """Do nothing: `CarriedPolicy.finish` removes them."""

    def __bool__(self) -> bool:
        self.settle()
        return self._carried.waiting.has_next

    def __len__(self) -> int:
        return len(self._carried.waiting)

    def __iter__(self) -> Iterator[Any]:
        self._head()  # by ranks of this moment
        foreign = self._carried.counts.foreign
        return iter([foreign[request.request_id] for request in self._carried.waiting])


VllmBase: Any = object
"""Base class of `Carrying`; a placeholder for type checkers without vLLM."""


class Carrying(VllmBase):  # type: ignore[misc]
    """Scheduler of vLLM that calls `sundog_policy`; if that fails, fcfs takes over."""

    sundog_policy: sundog_policies.Policy = sundog_policies.Fcfs()
    sundog_name = "fcfs"
    sundog_seed = 0
    clock = staticmethod(time.time)
    """Clock on which vLLM stamps `Request.arrival_time`."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        if self.connector is not None or self.ec_connector is not None:
            raise ValueError(f"policy {self.sundog_name} takes no KV or encoder connector: leave it out")
        limits = _limits(self)
        blocks = self._blocks = VllmBlocks(
            self.kv_cache_manager, limits.block_size, limits.num_gpu_blocks or 0
        )
        policy = guarded(self.sundog_policy, self.sundog_name)
        self._carried = carried = CarriedPolicy(policy, limits, blocks, self.sundog_seed)
        blocks.foreign = carried.counts.foreign
        if isinstance(policy, GuardedPolicy):
            policy.fallback = sundog_policies.Fcfs()
            policy.replace_when_slow(time.perf_counter)
            policy.on_failure.append(lambda error: log.error("%s; fcfs takes over", error))
        self.waiting = PolicyQueue(carried)
        self.policy = SchedulingPolicy.PRIORITY if carried.has_victims else SchedulingPolicy.FCFS
        self._refused: list[tuple[Any, str]] = []
        self._ended: list[tuple[str, int]] | None = None
        """Requests that ended in the step being applied, and the free blocks before; None between steps."""
        self._begun: deque[float] = deque()
        self._last_end_s = 0.0
        # A policy that does not ask pays for no call.
        if carried.has_victims:
            self._allocate = self.kv_cache_manager.allocate_slots
        self._reserve = super()._reserve_prefill_lookahead

    def add_request(self, request: Any) -> None:
        submit = _submit(request)
        reason = submit if isinstance(submit, str) else self._refusal(submit, request)
        if reason is None:
            request.priority = 0  # vLLM preempts the greatest: see `_allocate_or_name_victim`
            super().add_request(request)
            return
        log.warning("request %s is refused: %s", request.request_id, reason)
        request.status = RequestStatus.FINISHED_ERROR
        self._refused.append((request, reason))
        self.finished_req_ids.add(request.request_id)
        if self.finished_req_ids_dict is not None:
            self.finished_req_ids_dict[request.client_index].add(request.request_id)

    def _refusal(self, submit: sundog_request.Submit, request: Any) -> str | None:
        if request.resumable:
            return "policies do not schedule sessions with streamed input"
        refusal = self._carried.arrive(submit, request, self.clock())
        return None if refusal is None else refusal.reason

    def schedule(self, *arguments: Any, **named: Any) -> Any:
        carried = self._carried
        carried.begin_step(self.clock())
        if carried.has_quotas:
            carried.ask_quotas({each.request_id: None for each in self.running if each.is_prefill_chunk})
            admits = len(self.running) < self.max_num_active_reqs
            self._reserve_prefill_lookahead = (
                self._reserve_within_quota if admits or carried.quotas else self._reserve
            )
        if carried.measures_steps:
            self._begun.append(carried.view.now_s)
        if carried.has_victims:
            named_if_needed = self._allocate_or_name_victim if self._may_preempt() else self._allocate
            self.kv_cache_manager.allocate_slots = named_if_needed
        output = super().schedule(*arguments, **named)
        carried.planned(output.total_num_scheduled_tokens)
        return output

    def _may_preempt(self) -> bool:
        size, num_running = self._blocks.block_size, len(self.running)
        each = 2 + self.num_lookahead_tokens // size
        most = self.max_num_scheduled_tokens // size + num_running * each
        return bool(self._blocks.num_free < most * len(self.kv_cache_config.kv_cache_groups))

    def _reserve_within_quota(self, request: Any, num_computed_tokens: int, num_new_tokens: int) -> int:
        """Limit a chunk by the policy's quota where vLLM limits it."""
        if num_new_tokens > 0:
            wanted = request.num_tokens - num_computed_tokens
            num_new_tokens = self._carried.within_quota(request.request_id, num_new_tokens, wanted)
        found: int = self._reserve(request, num_computed_tokens, num_new_tokens)
        return found

    def _allocate_or_name_victim(self, request: Any, *arguments: Any, **named: Any) -> Any:
        """Allocate blocks, or make vLLM preempt the policy's victim by giving it the greatest `priority`."""
        blocks = self._allocate(request, *arguments, **named)
        if blocks is None and request.status == RequestStatus.RUNNING:
            self.requests[self._carried.victim()].priority = 1
        return blocks

    def _update_after_schedule(self, output: Any) -> None:
        self.waiting.settle()
        super()._update_after_schedule(output)

    def _free_request(self, request: Any, *arguments: Any, **named: Any) -> Any:
        if self._ended is None:
            self._carried.finish(request.request_id)
        else:
            self._ended.append((request.request_id, self._blocks.num_free))
        return super()._free_request(request, *arguments, **named)

    def update_from_output(self, output: Any, result: Any) -> Any:
        """Apply a step's result, then report new tokens and ended requests to the policy."""
        carried, blocks = self._carried, self._blocks
        self._ended = []
        outputs = super().update_from_output(output, result)
        now_s, ended, self._ended = self.clock(), self._ended, None
        given: dict[str, int] = {}
        if carried.measures_steps:
            self._measure(output, now_s)
        if carried.follows_tokens:
            each = chain.from_iterable([client.outputs for client in outputs.values()])
            given = {one.request_id: len(one.new_token_ids) for one in each if one.new_token_ids}
        blocks.pinned = ended[0][1] if ended else None
        carried.end_step(now_s, given)
        for name, num_free in ended:
            blocks.pinned = num_free
            carried.finish(name)
        blocks.pinned = None
        for request, reason in self._refused:
            answer = EngineCoreOutput(
                request.request_id, [], finish_reason=FinishReason.ERROR, stop_reason=reason
            )
            outputs.setdefault(request.client_index, EngineCoreOutputs()).outputs.append(answer)
        self._refused.clear()
        return outputs

    def _measure(self, output: Any, now_s: float) -> None:
        begun_s = max(self._begun.popleft(), self._last_end_s) if self._begun else now_s
        self._last_end_s = now_s
        counts = list(output.num_scheduled_tokens.values())
        num_decodes = counts.count(1)
        if counts and now_s > begun_s:
            self._carried.measured.seen(sum(counts) - num_decodes, num_decodes, now_s - begun_s)


class PolicyScheduler(Carrying, AsyncScheduler):  # type: ignore[misc]
    """Value of `--scheduler-cls` if steps are planned ahead: vLLM's default on GPUs."""


class SyncPolicyScheduler(Carrying, Scheduler):  # type: ignore[misc]
    """Value of `--scheduler-cls` if each step is planned after the previous one, as on CPUs."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        if self.scheduler_config.async_scheduling:
            raise ValueError("this vLLM plans steps ahead: use the class PolicyScheduler")


def _limits(scheduler: Any) -> sundog_config.SchedulerConfig:
    config = scheduler.scheduler_config
    return sundog_config.SchedulerConfig(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=scheduler.max_model_len,
        num_gpu_blocks=scheduler.kv_cache_config.num_blocks,
        block_size=scheduler.block_size,
        enable_prefix_caching=scheduler.cache_config.enable_prefix_caching,
        enable_chunked_prefill=config.enable_chunked_prefill,
        async_scheduling=config.async_scheduling,
    )


def _submit(request: Any) -> sundog_request.Submit | str:
    parameters, lora = request.sampling_params, request.lora_request
    extra = (parameters.extra_args if parameters is not None else None) or {}
    facts: dict[str, Any] = {"session": request.session_id}
    for name in FACTS.keys() & extra.keys():
        value: Any = extra[name]
        kind = FACTS[name]
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind or (kind is not str and not 0 < value < float("inf")):
            words = {str: "a text", int: "a whole number from 1 on", float: "seconds above 0"}
            return f"{name} is {value!r}: it must be {words[kind]}"
        facts[name] = value
    return sundog_request.Submit(
        request_id=request.request_id,
        arrival_s=request.arrival_time,
        num_prompt_tokens=request.num_prompt_tokens,
        max_tokens=request.max_tokens,
        priority=request.priority,
        cache_salt=request.cache_salt,
        adapter=None if lora is None else Adapter(lora.lora_name, lora.lora_path),
        **facts,
    )
