"""Plan one step: which tokens of which requests are computed, in which blocks.

There are no prefill and decode phases. Every request has computed tokens and known tokens, and a step lets
the computed ones catch up with the known ones under one token budget. Running requests go first, in order of
admission; then waiting ones are admitted (`admit.py`), and the first that does not fit blocks all behind it.
When blocks run out, a victim is preempted and recomputed later. Policies choose the next request and the
victim, and may let prefills go first.

Without the options that vLLM does not have, the decisions are vLLM V1's, step for step. Cost is
O(what changed): requests in lockstep are touched only when they need or fill a block; when blocks
or budget might not suffice for all, the lockstep is dissolved and the same loop touches everyone.
"""

from actors.core.batch import Batch, Blocked
from actors.core.request import Request, Status
from actors.core.step.admit import admit_urgent, admit_waiting
from actors.core.step.commit import commit
from actors.core.step.draft import (
    Draft,
    admission_order,
    ask_quotas,
    blocks_to_grow,
    pending,
    preempt,
    with_lookahead,
)
from actors.core.step.state import SchedulerState


def plan(state: SchedulerState, *, may_run: bool = True) -> tuple[Batch, Blocked | None]:
    """The next step, and what keeps the next request in the queue waiting, if there is one.

    Unless it `may_run`, it is a single step even where the state allows runs.
    """
    lockstep = state.lockstep
    draft = Draft(lockstep.planned + 1, state.config.max_num_batched_tokens, _threshold(state))
    if state.config.async_scheduling:
        for request in lockstep.due_to_expire(lockstep.planned):
            state.settle(request)
    if state.is_pipelined:
        state.catching_up.update((r.request_id, r) for r in lockstep.dissolve())
    if state.quota is not None:
        ask_quotas(state, draft)
    if state.config.preempt_for_priority:
        admit_urgent(state, draft)
    if state.policy.prefills_first and not draft.preempted:
        draft.reserved_blocks = blocks_to_grow(state, draft, state.running.values())
        admit_waiting(state, draft)
    _schedule_running(state, draft)
    if draft.preempted:
        draft.blocked = _blocked_by_preemption(state)
    elif not state.policy.prefills_first:
        admit_waiting(state, draft)
    return commit(state, draft, may_run), draft.blocked


def _blocked_by_preemption(state: SchedulerState) -> Blocked:
    request = state.waiting.peek()
    assert request is not None, "what is preempted waits"
    return Blocked(request.request_id, "preemption")


def _threshold(state: SchedulerState) -> int:
    """The most tokens of one prefill in this step; 0 is no limit."""
    config = state.config
    threshold = config.long_prefill_token_threshold
    if not threshold:
        return 0
    num_requests = len(state.running) + len(state.waiting)
    if num_requests <= 1:
        return 0
    if config.long_prefill_token_threshold_adaptive:
        threshold = max(threshold, config.max_num_batched_tokens // num_requests)
    return threshold


def _schedule_running(state: SchedulerState, draft: Draft) -> None:
    lockstep = state.lockstep
    catching_up = _catching_up(state, draft)
    if not (state.lockstep_enabled and _lockstep_holds(state, draft, catching_up)):
        state.catching_up.update((r.request_id, r) for r in lockstep.dissolve())
        catching_up = _catching_up(state, draft)
    draft.budget -= len(lockstep.members)
    draft.num_decodes = len(lockstep.members)
    draft.has_members = True
    grows = lockstep.due_to_grow(draft.step)
    # Under async scheduling the token that fills a block is known one plan later.
    last_known = draft.step - state.config.async_scheduling
    fills = lockstep.due_to_fill(last_known)
    if not (fills or catching_up) and len(grows) <= state.kv.pool.num_free:
        return _grow(state, draft, grows)
    growing, filling = {r.request_id: r for r in grows}, {r.request_id: r for r in fills}
    touched = growing | filling | catching_up
    turn = _prefills_first if state.policy.prefills_first else admission_order
    goes_on = True
    for request in sorted(touched.values(), key=turn) if len(touched) > 1 else touched.values():
        if not request.in_lockstep:
            if goes_on and request.status is Status.RUNNING:
                goes_on = _advance(state, draft, request)
        elif request.request_id in growing and _has_room(state, draft, request):
            block = state.kv.pool.take(1)
            request.block_ids += block
            draft.new_blocks[request.request_id] = tuple(block)
        if request.in_lockstep and request.request_id in filling:
            state.kv.register(request, lockstep.num_tokens(request))


def _has_room(state: SchedulerState, draft: Draft, request: Request) -> bool:
    """Whether a member gets a block, preempting others if necessary; False if it is preempted itself."""
    while state.kv.pool.num_free == 0:
        victim = state.choose_victim(state.running, state.view)
        preempt(state, draft, victim, request)
        if victim is request:
            return False
    return True


def _grow(state: SchedulerState, draft: Draft, growing: list[Request]) -> None:
    """Give each of these members a block, in turn: all that a step of steady decode does."""
    if growing:
        new_blocks = draft.new_blocks
        blocks = state.kv.pool.take(len(growing))
        for index, request in enumerate(growing):
            block = blocks[index]
            request.block_ids.append(block)
            new_blocks[request.request_id] = (block,)


def _prefills_first(request: Request) -> tuple[bool, int]:
    return (request.decodes_on_wire, request.order)


def _catching_up(state: SchedulerState, draft: Draft) -> dict[str, Request]:
    """Requests not in lockstep that are to be scheduled, except those this plan has admitted already."""
    if not draft.scheduled:
        return state.catching_up
    return {n: r for n, r in state.catching_up.items() if n not in draft.scheduled}


def _lockstep_holds(state: SchedulerState, draft: Draft, catching_up: dict[str, Request]) -> bool:
    """Whether every member gets its token and its block in the order of the plain loop.

    Where blocks may run out, only if those that are preempted are the last in this order.
    """
    lockstep, num_members = state.lockstep, len(state.lockstep.members)
    budget = draft.budget - num_members
    if not num_members or budget < 0:
        return not num_members
    num_blocks = len(lockstep.grows.get(draft.step, ()))
    demand = 0
    for request in catching_up.values():
        num_tokens = pending(state, draft, request)
        held = request.num_computed_tokens + min(num_tokens, budget)
        num_blocks += state.kv.num_blocks(held) - len(request.block_ids)
        demand += num_tokens
    if num_blocks > state.kv.pool.num_free:
        return state.preempts_last and demand <= budget and not state.policy.prefills_first
    if demand <= budget:
        return True
    members_first = lockstep.max_order < min(map(admission_order, catching_up.values()))
    return members_first and not state.policy.prefills_first


def _advance(state: SchedulerState, draft: Draft, request: Request) -> bool:
    """Schedule one running request, preempting others if necessary. False ends the phase."""
    num_tokens = min(pending(state, draft, request), draft.budget)
    if num_tokens == 0:
        return draft.budget > 0
    computed = request.num_computed_tokens + num_tokens
    held = with_lookahead(state, computed)
    while (blocks := state.kv.grow(request, held)) is None:
        victim = state.choose_victim(state.running, state.view)
        preempt(state, draft, victim, request)
        if victim is request:
            return state.config.engine_version != "0.32"
    if blocks:
        draft.new_blocks[request.request_id] = tuple(blocks)
    state.kv.register(request, min(computed, request.num_tokens))
    draft.scheduled[request.request_id] = (request, num_tokens)
    draft.budget -= num_tokens
    return True
