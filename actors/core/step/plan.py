"""Plan a step: which tokens of which requests are computed, in which blocks.

There are no prefill and decode phases. Every request has computed tokens and known tokens, and a step lets
the computed ones catch up with the known ones under one token budget. Running requests go first, in order of
admission. Then waiting requests are admitted in the policy's order while budget, running slots and blocks
last; the first that lacks something blocks all behind it. When blocks run out, a victim is preempted and
computed again later. The policy orders the queue, chooses the victim, and may let prefills go first.

Without the options that vLLM does not have, the decisions are those of vLLM V1, step for step. Two options
change the queue. With `max_overtakes`, requests behind one that lacks blocks may be admitted; a request is
overtaken at most that many times in one wait, so that none starves. With `preempt_for_priority`, the head of
the queue may replace running requests that are strictly less urgent, if that is sure to admit it.

Cost is O(what changed): requests in lockstep are touched only when they need or fill a block. When blocks or
budget might not suffice for all, the lockstep is dissolved and the same loop touches every request.
"""

from collections.abc import Iterable
from typing import Literal

from sundog.actors.core.batch import Batch, Blocked, Lack
from sundog.actors.core.blocks.runs import BlockNumbers
from sundog.actors.core.request import Request, Status
from sundog.actors.core.step.commit import admission_order, commit
from sundog.actors.core.step.demand import Demand, aligned_tokens, demand_of, find_load
from sundog.actors.core.step.draft import Draft
from sundog.actors.core.step.state import SchedulerState


def plan(state: SchedulerState, *, may_run: bool = True) -> tuple[Batch, Blocked | None]:
    """Return the next step, and the first request that was not admitted with the reason.

    Args:
        state: The state of the scheduler, which advances to the planned step.
        may_run: Whether the batch may be a decode run; otherwise it is a single step.
    """
    lockstep = state.lockstep
    config = state.config
    if state.kv.new_states:
        state.kv.new_states.clear()
    threshold = _threshold(state) if config.long_prefill_token_threshold else 0
    draft = state.draft
    draft.begin(lockstep.planned + 1, config.max_num_batched_tokens, threshold)
    if config.async_scheduling:
        # The step in flight brings them to their limit: they end with its result and get no further token.
        for request in lockstep.due_to_expire(lockstep.planned):
            state.settle(request)
    # Some requests get no token in a step here, which a lockstep cannot express.
    if state.is_pipelined or state.pauses:
        state.catching_up.update((r.request_id, r) for r in lockstep.dissolve())
    if state.cadence is not None:
        draft.holds_prefills = state.cadence.holds(state.running)
    if state.quota is not None:
        _ask_quotas(state, draft)
    if config.preempt_for_priority:
        _admit_urgent(state, draft)
    if state.prefills_first and not draft.preempted:
        # Admission comes before growth: it must leave the blocks that running requests need in this step.
        draft.reserved_blocks = _blocks_to_grow(state, draft, state.running.values())
        _admit_waiting(state, draft)
    _schedule_running(state, draft)
    # As in vLLM, a step that preempts admits no request.
    if draft.preempted:
        draft.blocked = _blocked_by_preemption(state)
    elif not state.prefills_first:
        _admit_waiting(state, draft)
    if state.cadence is not None:
        held = draft.holds_prefills or bool(draft.preempted)
        state.cadence.plan(
            computes=bool(draft.scheduled or draft.num_decodes),
            has_prefill=draft.has_prefill or _has_prefill(draft),
            is_held=state.pauses and draft.holds_prefills,
            num_waiting=None if held else len(state.waiting),
        )
    return commit(state, draft, may_run), draft.blocked


def _has_prefill(draft: Draft) -> bool:
    """Return whether the step computes a part of a prompt, apart from the last token of a known prefix."""
    admitted = {request.request_id for request, _ in draft.admitted}
    for name, (request, _) in draft.scheduled.items():
        if name not in admitted:
            if not request.decodes_on_wire:
                return True
        elif request.num_computed_tokens < request.num_tokens - 1:
            return True
    return False


def _blocked_by_preemption(state: SchedulerState) -> Blocked:
    request = state.waiting.peek()
    assert request is not None, "what is preempted waits"
    return Blocked(request.request_id, "preemption")


def _threshold(state: SchedulerState) -> int:
    """Return the largest number of tokens of one prefill in this step, if there is a limit; else 0."""
    config = state.config
    threshold = config.long_prefill_token_threshold
    num_requests = len(state.running) + len(state.waiting)
    if num_requests <= 1:
        return 0
    if config.long_prefill_token_threshold_adaptive:
        threshold = max(threshold, config.max_num_batched_tokens // num_requests)
    return threshold


def _ask_quotas(state: SchedulerState, draft: Draft) -> None:
    """Call the policy's `quota` for each running request with several tokens to compute. O(these requests)

    A policy that pauses is also called for decodes: O(running).
    """
    assert state.quota is not None
    for name, request in state.catching_up.items():
        num_tokens = _pending(state, draft, request) - request.num_drafts
        if num_tokens > 1 or (state.pauses and num_tokens > 0):
            quota = state.quota(request, state.view)
            draft.quotas[name] = quota if num_tokens > 1 or quota == 0 else None


def _schedule_running(state: SchedulerState, draft: Draft) -> None:
    lockstep = state.lockstep
    catching_up = _catching_up(state, draft) if draft.scheduled else state.catching_up
    grows = lockstep.due_to_grow(draft.step)
    if not (state.lockstep_enabled and _lockstep_holds(state, draft, grows, catching_up)):
        state.catching_up.update((r.request_id, r) for r in lockstep.dissolve())
        catching_up, grows = _catching_up(state, draft), []
    draft.num_decodes = len(lockstep.members)
    draft.budget -= draft.num_decodes
    draft.has_members = True
    # Under async scheduling the token that fills a block is known one plan later.
    last_known = draft.step - state.config.async_scheduling
    fills = lockstep.due_to_fill(last_known) if lockstep.fills else None
    # Steady decode: no block to register, no request outside the lockstep, and a block for each that grows.
    if not (grows or fills or catching_up):
        return
    if not (fills or catching_up) and len(grows) <= state.kv.pool.num_free:
        return _grow(state, draft, grows)
    growing = {r.request_id: r for r in grows}
    filling = {r.request_id: r for r in fills} if fills else dict[str, Request]()
    touched = growing | filling | catching_up
    turn = _prefills_first if state.prefills_first else admission_order
    goes_on = True
    # Blocks must be taken in the order in which a loop over all running requests would take them.
    for request in sorted(touched.values(), key=turn) if len(touched) > 1 else touched.values():
        if not request.in_lockstep:
            # An earlier request of this loop may have preempted it.
            if goes_on and request.status is Status.RUNNING:
                goes_on = _advance(state, draft, request)
        elif request.request_id in growing and _has_room(state, draft, request):
            block = state.kv.pool.take(1)
            request.block_ids += block
            draft.new_blocks.append((request.request_id, tuple(block)))
        if request.in_lockstep and request.request_id in filling:
            state.kv.register(request, lockstep.num_tokens(request))


def _catching_up(state: SchedulerState, draft: Draft) -> dict[str, Request]:
    """Return the requests outside the lockstep to schedule, without those this plan has admitted."""
    return {n: r for n, r in state.catching_up.items() if n not in draft.scheduled}


def _lockstep_holds(
    state: SchedulerState, draft: Draft, grows: list[Request], catching_up: dict[str, Request]
) -> bool:
    """Return whether every member gets its token and block in the order of the plain loop.

    If blocks may run out, that is so only if the victims are the last in this order.
    """
    lockstep, num_members = state.lockstep, len(state.lockstep.members)
    budget = draft.budget - num_members
    if not num_members or budget < 0:
        return not num_members
    num_blocks, demand = len(grows), 0
    if catching_up:
        for request in catching_up.values():
            num_tokens = _pending(state, draft, request)
            held = request.num_computed_tokens + min(num_tokens, budget)
            num_blocks += max(state.kv.num_blocks(held) - len(request.block_ids), 0)
            demand += num_tokens
    if num_blocks > state.kv.pool.num_free:
        return state.preempts_last and demand <= budget and not state.prefills_first
    if demand <= budget:
        return True
    members_first = lockstep.max_order < min(map(admission_order, catching_up.values()))
    return members_first and not state.prefills_first


def _grow(state: SchedulerState, draft: Draft, growing: list[Request]) -> None:
    """Give each of these members a block: the only work of a step of steady decode."""
    new_blocks = draft.new_blocks
    blocks: BlockNumbers = state.kv.pool.take(len(growing))
    for index, request in enumerate(growing):
        block = blocks[index]
        request.block_ids.append(block)
        new_blocks.append((request.request_id, (block,)))


def _has_room(state: SchedulerState, draft: Draft, request: Request) -> bool:
    """Free a block for a member, preempting others if necessary; return False if the member itself is
    preempted.
    """
    while state.kv.pool.num_free == 0:
        victim = state.choose_victim(state.running, state.view)
        _preempt(state, draft, victim, request)
        if victim is request:
            return False
    return True


def _prefills_first(request: Request) -> tuple[bool, int]:
    return (request.decodes_on_wire, request.order)


def _advance(state: SchedulerState, draft: Draft, request: Request) -> bool:
    """Schedule one running request, preempting others if necessary; return False to end the phase."""
    num_tokens = min(_pending(state, draft, request), draft.budget)
    if state.config.keeps_states:
        num_tokens = aligned_tokens(state.config, request, request.num_computed_tokens, num_tokens)
    if num_tokens == 0:
        return draft.budget > 0
    computed = request.num_computed_tokens + num_tokens
    held = _with_lookahead(state, computed)
    while (blocks := state.kv.grow(request, held)) is None:
        victim = state.choose_victim(state.running, state.view)
        _preempt(state, draft, victim, request)
        if victim is request:
            return state.goes_on_after_own_preemption
    if blocks:
        draft.new_blocks.append((request.request_id, tuple(blocks)))
    state.kv.register(request, min(computed, request.num_tokens))
    draft.scheduled[request.request_id] = (request, num_tokens)
    draft.budget -= num_tokens
    return True


def _pending(state: SchedulerState, draft: Draft, request: Request) -> int:
    """Return how many tokens a running request could compute in this step, without the budget."""
    computed, in_flight = request.num_computed_tokens, request.num_in_flight
    if draft.holds_prefills and not request.decodes_on_wire:
        return 0
    if state.is_pipelined:
        if draft.step < request.next_decode_step:
            return 0
        if not state.config.async_scheduling:
            in_flight = 0  # what is not known yet cannot be computed
    if in_flight and computed + 2 - in_flight >= (
        request.submit.num_prompt_tokens + request.submit.max_tokens
    ):
        return 0
    num_tokens = request.num_tokens + request.num_drafts + in_flight - computed
    if 0 < draft.threshold < num_tokens:
        num_tokens = draft.threshold
    if draft.quotas:
        quota = draft.quotas.get(request.request_id)
        num_tokens = num_tokens if quota is None else min(num_tokens, quota)
    return max(min(num_tokens, state.config.max_model_len - computed - 1), 0)


def _with_lookahead(state: SchedulerState, num_tokens: int) -> int:
    """Return how many slots a running request holds after computing `num_tokens`."""
    config = state.config
    if not config.num_lookahead_tokens:
        return num_tokens
    return min(num_tokens + config.num_lookahead_tokens, config.max_model_len)


def _blocks_to_grow(state: SchedulerState, draft: Draft, running: Iterable[Request]) -> int:
    """Return how many blocks these running requests need in this step, if the budget suffices."""
    num_blocks = 0
    for request in running:
        if request.in_lockstep:
            num_blocks += state.lockstep.grows_in(request, draft.step)
        else:
            num_tokens = min(_pending(state, draft, request), draft.budget)
            held = state.kv.num_blocks(_with_lookahead(state, request.num_computed_tokens + num_tokens))
            num_blocks += max(held - len(request.block_ids), 0)
    return num_blocks


def _preempt(state: SchedulerState, draft: Draft, victim: Request, needy: Request) -> None:
    """Preempt a victim for `needy`. Tokens that this step gave the victim return to the budget.

    Blocks registered for tokens that are now not computed are forgotten. vLLM leaves them in the prefix
    cache, where a later hit finds keys and values that were never written.
    """
    if victim.request_id in draft.scheduled:
        draft.has_prefill = draft.has_prefill or not victim.decodes_on_wire
        if not state.leaves_uncomputed:
            state.kv.unregister(victim, victim.num_computed_tokens)
    if draft.has_members and victim.in_lockstep:
        draft.budget += 1
        draft.num_decodes -= 1
    state.preempt(victim)
    draft.preempted.append(victim)
    draft.preempted_for.append(needy.request_id)
    if victim.request_id in draft.scheduled:
        draft.budget += draft.scheduled.pop(victim.request_id)[1]
        draft.new_blocks = [pair for pair in draft.new_blocks if pair[0] != victim.request_id]


def _admit_waiting(state: SchedulerState, draft: Draft) -> None:
    """Admit from the queue until a request lacks something, which the draft records."""
    queue, most = state.waiting, state.config.max_overtakes
    if not queue.places:
        return
    passed: list[Request] = []
    only_fetched = False
    queue.rerank()
    while (request := queue.peek()) is not None:
        lack = _lacks_turn(state, draft)
        if lack is None and (wait := _waits_for(state, request, only_fetched=only_fetched)) is not None:
            if wait == "KV load":
                _note_blocked(state, draft, request, wait)
            _pass_over(state, request)
            continue
        lack = lack or _admit(state, draft, request)
        if lack is None:
            for overtaken in passed:
                overtaken.num_overtakes += 1
        else:
            _note_blocked(state, draft, request, lack)
            if lack == "KV blocks":
                queue.pass_over()
                passed.append(request)
            elif lack == "KV load" or (lack == "quota" and state.passes_over_unschedulable):
                _pass_over(state, request)
            else:
                break
        if passed and any(waiting.num_overtakes >= most for waiting in passed):
            if state.running or not state.has_fetched:
                break
            # Only requests that hold fetched blocks can make room: they take none, and so overtake nobody.
            only_fetched = True
            passed.clear()
    # Requests that were passed over are in the queue again, at their old places.
    queue.rewind()


def _note_blocked(state: SchedulerState, draft: Draft, request: Request, lack: Lack) -> None:
    """Record why the queue is blocked: the first request that lacks more than its load or a quota, else the
    first one.
    """
    former = None if draft.blocked is None else draft.blocked.reason
    if former in (None, "KV load") or (former == "quota" and lack != "quota"):
        draft.blocked = Blocked(request.request_id, lack)
        state.waiting.note_rank(request)


def _pass_over(state: SchedulerState, request: Request) -> None:
    """Skip a request that cannot run now for a reason of its own, not for lack of room, and consider the
    next.
    """
    state.waiting.pass_over()
    if state.cadence is not None:
        state.cadence.pass_over(request)


def _lacks_turn(state: SchedulerState, draft: Draft) -> Lack | None:
    """Return the reason why no request may be admitted in this step; None if some may."""
    if draft.budget == 0:
        return "token budget"
    return "max_num_seqs" if len(state.running) >= state.config.max_num_running else None


Wait = Literal["result", "KV load", "room"]


def _waits_for(state: SchedulerState, request: Request, *, only_fetched: bool = False) -> Wait | None:
    """Return what a waiting request waits for regardless of room; None if it may be admitted.

    It may wait for the result of a step that was planned before its preemption, or for its blocks to be
    filled. With `only_fetched` only requests whose blocks were fetched may be admitted; the others wait until
    those have left.
    """
    if request.num_in_flight or request.last_step > state.lockstep.done:
        return "result"
    if request.request_id in state.handovers.fetching:
        return "KV load"
    return "room" if only_fetched and not request.block_ids else None


def _admit(state: SchedulerState, draft: Draft, request: Request) -> Lack | None:
    reserved = draft.reserved_blocks + (state.kv.watermark_blocks if state.running else 0)
    if state.kv.host is not None and (load := find_load(state, request)) is not None:
        if load.is_under_way:
            return "KV load"
        if not state.kv.fits(load.demand.hit, load.demand.num_fitting_tokens, reserved):
            return "KV blocks"
        load.begin(state, request)
        return "KV load"
    demand = demand_of(state, draft, request)
    if demand.num_tokens > draft.budget:
        return "token budget"
    if demand.num_tokens == 0:
        return demand.lacks or ("prefill interval" if demand.is_held else "quota")
    if not state.kv.fits(demand.hit, demand.num_fitting_tokens, reserved):
        return "KV blocks"
    _enter(state, draft, request, demand)
    return None


def _enter(state: SchedulerState, draft: Draft, request: Request, demand: Demand) -> None:
    """Run the request with the blocks and tokens that it demands."""
    state.waiting.note_rank(request)
    state.waiting.discard(request)
    if state.cadence is not None:
        state.cadence.admit(request)
    state.kv.admit(request, demand.hit, demand.num_held_tokens)
    request.num_computed_tokens = demand.num_known_tokens
    resumes = request.status is Status.PREEMPTED
    draft.admitted.append((request, resumes))
    draft.scheduled[request.request_id] = (request, demand.num_tokens)
    draft.budget -= demand.num_tokens
    state.admit(request, draft.step)
    state.waiting.rerank()


def _admit_urgent(state: SchedulerState, draft: Draft) -> None:
    """Admit the head of the queue before running requests grow, if any of these is less urgent.

    Less urgent requests are preempted if that admits it or starts its load from the host's memory: as few as
    necessary, the least urgent and latest admitted first. Blocks that the others need to grow in this step
    are reserved for them. A request that still cannot run waits until another one leaves. O(running).
    """
    queue = state.waiting
    queue.rerank()
    while (request := queue.peek()) is not None and _waits_for(state, request) is not None:
        queue.pass_over()
    if request is not None:
        _make_way(state, draft, request)
    queue.rewind()


def _make_way(state: SchedulerState, draft: Draft, request: Request) -> None:
    """Admit a request, or start its load, in place of running requests that are less urgent."""
    load = None if state.kv.host is None else find_load(state, request)
    demand = demand_of(state, draft, request) if load is None else load.demand
    victims = _less_urgent(state, request)
    if not (victims and demand.num_tokens) or _lack(state, draft, demand, victims) is not None:
        return
    for victim in victims:
        if _lack(state, draft, demand, []) is None:
            break
        _preempt(state, draft, victim, request)
    if load is None:
        _enter(state, draft, request, demand)
    else:
        load.begin(state, request)


def _less_urgent(state: SchedulerState, request: Request) -> list[Request]:
    """Return running requests that are strictly less urgent, the first to preempt first."""
    view = state.view
    own = state.policy.urgency(request, view)
    ranked = [(state.policy.urgency(r, view), r) for r in reversed(state.running.values())]
    ranked = sorted((pair for pair in ranked if pair[0] > own), key=lambda p: p[0], reverse=True)
    return [request for _, request in ranked]


def _lack(state: SchedulerState, draft: Draft, demand: Demand, victims: list[Request]) -> Lack | None:
    """Return what a demand would lack if the victims were preempted; running requests have not grown yet.
    None: nothing.
    """
    gone = {victim.request_id for victim in victims}
    running = [request for name, request in state.running.items() if name not in gone]
    if demand.needs_slot and len(running) >= state.config.max_num_running:
        return "max_num_seqs"
    reserved = _blocks_to_grow(state, draft, running)
    reserved += state.kv.watermark_blocks if running else 0
    fits = state.kv.fits_without(victims, demand.hit, demand.num_fitting_tokens, reserved)
    return None if fits else "KV blocks"
