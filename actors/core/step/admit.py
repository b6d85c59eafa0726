"""Admit waiting requests in the policy's order, as far as budget, running slots and blocks go.

The first request that lacks something blocks all behind it, as in vLLM. Two options soften that. With
`max_overtakes`, requests behind one that lacks blocks may be admitted; a request is overtaken at most N times
in one wait, so that none starves. With `preempt_for_priority`, the next request in the queue may take the
place of running requests that are strictly less urgent, if that is sure to admit it.
"""

from dataclasses import dataclass

from actors.core.batch import Blocked
from actors.core.request import Request, Status
from actors.core.step.draft import Draft, blocks_to_grow, preempt
from actors.core.step.state import SchedulerState


@dataclass(init=False, slots=True)
class Demand:
    """What a waiting request needs to be admitted into a step.

    The request computes `num_tokens` beyond the `num_known_tokens` of the cached blocks `hit`, or of another
    server's, and needs room for `num_fitting_tokens` in all.
    """

    hit: list[int]
    num_known_tokens: int
    num_tokens: int
    num_held_tokens: int
    num_fitting_tokens: int

    def __init__(
        self,
        hit: list[int],
        num_known_tokens: int,
        num_tokens: int,
        num_held_tokens: int,
        num_fitting_tokens: int,
    ) -> None:
        self.hit = hit
        self.num_known_tokens = num_known_tokens
        self.num_tokens = num_tokens
        self.num_held_tokens = num_held_tokens
        self.num_fitting_tokens = num_fitting_tokens


def admit_waiting(state: SchedulerState, draft: Draft) -> None:
    """Admit from the queue until a request lacks something; the draft says which and what."""
    queue, most = state.waiting, state.config.max_overtakes
    if not queue:
        return
    passed: list[Request] = []
    queue.rerank()
    while (request := queue.peek()) is not None:
        lack = _lacks_turn(state, draft)
        if lack is None and _is_in_flight(state, request):
            queue.pass_over()
            continue
        lack = lack or _admit(state, draft, request)
        if lack is None:
            for overtaken in passed:
                overtaken.num_overtakes += 1
        else:
            if draft.blocked is None:
                draft.blocked = Blocked(request.request_id, lack)
                queue.note_rank(request)
            if lack != "KV blocks" or not most:
                break
            queue.pass_over()
            passed.append(request)
        if any(waiting.num_overtakes >= most for waiting in passed):
            break
    queue.rewind()


def _is_in_flight(state: SchedulerState, request: Request) -> bool:
    """Whether a preempted request is still computed by a step that was planned before."""
    return bool(request.num_in_flight) or request.last_step > state.lockstep.done


def admit_urgent(state: SchedulerState, draft: Draft) -> None:
    """Admit the next request in the queue before running requests grow, if any of these is less urgent.

    Less urgent requests are preempted if that admits it: as few as needed, the least urgent and latest
    admitted first. The blocks that the others need to grow in this step are left to them. A request that is
    kept out even so waits until another leaves. O(running).
    """
    state.waiting.rerank()
    request = state.waiting.peek()
    if request is None or _is_in_flight(state, request):
        return
    demand = _demand(state, draft, request)
    victims = _less_urgent(state, request)
    if not victims or _lack(state, draft, demand, victims) is not None:
        return
    for victim in victims:
        if _lack(state, draft, demand, []) is None:
            break
        preempt(state, draft, victim, request)
    _enter(state, draft, request, demand)


def _less_urgent(state: SchedulerState, request: Request) -> list[Request]:
    """Running requests that are strictly less urgent; the first to preempt comes first."""
    view = state.view
    own = state.policy.urgency(request, view)
    ranked = [(state.policy.urgency(r, view), r) for r in reversed(state.running.values())]
    ranked = sorted((pair for pair in ranked if pair[0] > own), key=lambda p: p[0], reverse=True)
    return [request for _, request in ranked]


def _lack(state: SchedulerState, draft: Draft, demand: Demand, victims: list[Request]) -> str | None:
    """What a demand would lack before running requests have grown, if the victims were gone."""
    gone = {victim.request_id for victim in victims}
    running = [request for name, request in state.running.items() if name not in gone]
    if len(running) >= state.config.max_num_running:
        return "max_num_seqs"
    reserved = blocks_to_grow(state, draft, running)
    reserved += state.kv.watermark_blocks if running else 0
    fits = state.kv.fits_without(victims, demand.hit, demand.num_fitting_tokens, reserved)
    return None if fits else "KV blocks"


def _lacks_turn(state: SchedulerState, draft: Draft) -> str | None:
    """What keeps every request from being admitted now."""
    if draft.budget == 0:
        return "token budget"
    return "max_num_seqs" if len(state.running) >= state.config.max_num_running else None


def _demand(state: SchedulerState, draft: Draft, request: Request) -> Demand:
    config = state.config
    hit = state.kv.find_hit(request)
    num_known_tokens = len(hit) * config.block_size
    if request.submit.has_remote_kv and not request.num_preemptions:
        num_known_tokens = request.num_tokens - 1
    num_tokens = request.num_tokens - num_known_tokens
    if 0 < draft.threshold < num_tokens:
        num_tokens = draft.threshold
    if state.quota is not None and num_tokens > 1:
        quota = state.quota(request, state.view)
        num_tokens = num_tokens if quota is None else min(num_tokens, quota)
    if config.enable_chunked_prefill:
        num_tokens = min(num_tokens, draft.budget)
    held = min(num_known_tokens + num_tokens, config.max_model_len)
    whole = min(request.num_tokens, config.max_model_len)
    return Demand(
        hit, num_known_tokens, num_tokens, held, whole if config.scheduler_reserve_full_isl else held
    )


def _admit(state: SchedulerState, draft: Draft, request: Request) -> str | None:
    """Admit a waiting request, or say what it lacks."""
    demand = _demand(state, draft, request)
    if demand.num_tokens > draft.budget:
        return "token budget"
    reserved = draft.reserved_blocks + (state.kv.watermark_blocks if state.running else 0)
    if not state.kv.fits(demand.hit, demand.num_fitting_tokens, reserved):
        return "KV blocks"
    _enter(state, draft, request, demand)
    return None


def _enter(state: SchedulerState, draft: Draft, request: Request, demand: Demand) -> None:
    """Make the request run, with the blocks and tokens that it demands."""
    state.waiting.note_rank(request)
    state.waiting.discard(request)
    state.kv.admit(request, demand.hit, demand.num_held_tokens)
    request.num_computed_tokens = demand.num_known_tokens
    resumes = request.status is Status.PREEMPTED
    draft.admitted.append((request, resumes))
    draft.scheduled[request.request_id] = (request, demand.num_tokens)
    draft.budget -= demand.num_tokens
    state.admit(request, draft.step)
    state.waiting.rerank()
