"""Plan one step: whose tokens are computed, in whose blocks.

There are no prefill and decode phases. Every request has computed tokens and known tokens, and a
step lets the first catch up with the second under one token budget: those that run go first, in
order of admission; then those that wait are admitted (`admit.py`), the first that does not fit
blocking all behind it. When blocks run out, a victim is preempted and recomputed later. Policies
choose who is next and who is the victim, and may let prefills go first.

Without the options that vLLM does not have, the decisions are vLLM V1's, step for step. Cost is
O(what changed): requests in lockstep are touched only when they need or fill a block; when blocks
or budget might not suffice for all, the lockstep is dissolved and the same loop touches everyone.
"""

from actors.core.admit import admit_urgent, admit_waiting
from actors.core.batch import Admission, Batch, Blocked, Chunk
from actors.core.draft import Draft, blocks_to_grow, pending, preempt
from actors.core.lockstep import InFlight
from actors.core.request import Request, Status
from actors.core.state import SchedulerState


def plan(state: SchedulerState, *, may_run: bool = True) -> tuple[Batch, Blocked | None]:
    """The next step, and what keeps the next in the queue waiting, if somebody waits.

    Unless it `may_run`, it is one step whatever the state says of runs.
    """
    lockstep = state.lockstep
    draft = Draft(lockstep.planned + 1, state.config.max_num_batched_tokens, _threshold(state))
    if state.config.async_scheduling:
        for request in list(lockstep.due_to_expire(lockstep.planned)):
            state.settle(request)
    if state.config.preempt_for_priority:
        admit_urgent(state, draft)
    if state.policy.prefills_first:
        draft.reserved_blocks = blocks_to_grow(state, draft, state.running.values())
        admit_waiting(state, draft)
    _schedule_running(state, draft)
    if draft.preempted:
        draft.blocked = _blocked_by_preemption(state)
    elif not state.policy.prefills_first:
        admit_waiting(state, draft)
    return _commit(state, draft, may_run), draft.blocked


def _blocked_by_preemption(state: SchedulerState) -> Blocked:
    request = state.waiting.peek()
    assert request is not None, "whoever is preempted waits"
    return Blocked(request.request_id, "preemption")


def _run_length(state: SchedulerState) -> int:
    """Steps, the planned one included, until anything but lengths can change.

    Until somebody reaches a length limit or blocks might run out. Whoever waits goes on waiting:
    blocks only become fewer, nobody leaves the batch or its budget, and no rank or urgency changes
    unless the policy is dynamic.
    """
    lockstep = state.lockstep
    if state.config.async_scheduling and (len(lockstep.in_flight) < 2 or lockstep.fills):
        # The step after it would be planned at once, or names a block when its token is known.
        return 1
    if not lockstep.members or state.catching_up or (state.policy.is_dynamic and state.waiting):
        return 1
    num_steps = 1 + lockstep.steps_that_fit(state.kv.pool.num_free)
    expiry = lockstep.next_expiry()
    return num_steps if expiry is None else min(num_steps, expiry - lockstep.planned + 1)


def extend(state: SchedulerState, num_steps: int) -> None:
    """Plan `num_steps` more steps like the last one, which a run has done already.

    Blocks are taken in the order in which step after step would have taken them. O(those that
    grow), and a slice each.
    """
    lockstep, kv = state.lockstep, state.kv
    first, last = lockstep.planned + 1, lockstep.planned + num_steps
    turns, num_blocks = lockstep.grow_through(first, last)
    blocks = kv.pool.take(num_blocks)
    for turn, request in enumerate(turns):
        request.block_ids += blocks[turn :: len(turns)]
    for step in range(first, last + 1) if lockstep.fills else ():
        lockstep.planned = step
        for request in sorted(lockstep.due_to_fill(step), key=_order):
            kv.register(request, lockstep.num_computed(request))
    lockstep.done, lockstep.planned = last - 1, last


def _threshold(state: SchedulerState) -> int:
    """Most tokens of one prefill in this step; 0 is no limit, and adaptive to nothing."""
    config, num_requests = state.config, len(state.running) + len(state.waiting)
    threshold = config.long_prefill_token_threshold
    if not threshold or num_requests <= 1:
        return 0
    if config.long_prefill_token_threshold_adaptive:
        threshold = max(threshold, config.max_num_batched_tokens // num_requests)
    return threshold


# --- those that run ------------------------------------------------------------------------------


def _schedule_running(state: SchedulerState, draft: Draft) -> None:
    lockstep = state.lockstep
    catching_up = _catching_up(state, draft)
    if not (state.lockstep_enabled and _lockstep_holds(state, draft, catching_up)):
        state.catching_up.update((r.request_id, r) for r in lockstep.dissolve())
        catching_up = _catching_up(state, draft)
    draft.budget -= len(lockstep.members)
    draft.num_decodes = len(lockstep.members)
    growing = {r.request_id: r for r in lockstep.due_to_grow(draft.step)}
    # Under async scheduling the token that fills a block is known one plan later.
    last_known = draft.step - state.config.async_scheduling
    filling = {r.request_id: r for r in lockstep.due_to_fill(last_known)}
    if not (growing or filling or catching_up):
        return
    touched = growing | filling | catching_up
    turn = _prefills_first if state.policy.prefills_first else _order
    goes_on = True
    for request in sorted(touched.values(), key=turn) if len(touched) > 1 else touched.values():
        if not request.in_lockstep:
            if goes_on and request.status is Status.RUNNING:
                goes_on = _advance(state, draft, request)
        elif request.request_id in growing:
            block = state.kv.pool.take(1)
            request.block_ids += block
            draft.new_blocks[request.request_id] = block
        if request.in_lockstep and request.request_id in filling:
            state.kv.register(request, lockstep.num_tokens(request))


def _order(request: Request) -> int:
    return request.order


def _prefills_first(request: Request) -> tuple[bool, int]:
    return (request.decodes_on_wire, request.order)


def _catching_up(state: SchedulerState, draft: Draft) -> dict[str, Request]:
    """Those not in lockstep who are to be scheduled, without any admitted before them."""
    if not draft.scheduled:
        return state.catching_up
    return {n: r for n, r in state.catching_up.items() if n not in draft.scheduled}


def _lockstep_holds(state: SchedulerState, draft: Draft, catching_up: dict[str, Request]) -> bool:
    """Whether every member surely gets its token and its block, in the order of the plain loop."""
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
        return False
    if demand <= budget:
        return True
    members_first = lockstep.max_order < min(map(_order, catching_up.values()))
    return members_first and not state.policy.prefills_first


def _advance(state: SchedulerState, draft: Draft, request: Request) -> bool:
    """Schedule one running request, preempting others if need be. False ends the phase."""
    num_tokens = min(pending(state, draft, request), draft.budget)
    if num_tokens == 0:
        return draft.budget > 0
    held = request.num_computed_tokens + num_tokens
    while (blocks := state.kv.grow(request, held)) is None:
        victim = state.choose_victim(state.running, state.view)
        preempt(state, draft, victim, request)
        if victim is request:
            return state.config.engine_version != "0.32"
    if blocks:
        draft.new_blocks[request.request_id] = blocks
    state.kv.register(request, min(held, request.num_tokens))
    draft.scheduled[request.request_id] = (request, num_tokens)
    draft.budget -= num_tokens
    return True


# --- the batch -----------------------------------------------------------------------------------


def _commit(state: SchedulerState, draft: Draft, may_run: bool) -> Batch:
    """Move the state on by the planned step, and say it as a diff."""
    lockstep = state.lockstep
    lockstep.planned = draft.step
    lockstep.in_flight.append(InFlight(draft.step))
    idle = _idle(state, draft) if state.catching_up else ()
    # What was computed before this step: said before the step counts as computed.
    admitted = tuple([_admission(request, resumed) for request, resumed in draft.admitted])
    chunks = _chunks(state, draft) if draft.scheduled else ()
    preempted: tuple[str, ...] = ()
    preempted_for: tuple[str | None, ...] = ()
    if state.reset_ids or draft.preempted:
        preempted = (*state.reset_ids, *(request.request_id for request in draft.preempted))
        preempted_for = (*(None for _ in state.reset_ids), *draft.preempted_for)
    may_run = may_run and state.decode_runs and not (chunks or idle or preempted)
    batch = Batch(
        step=draft.step,
        admitted=admitted,
        chunks=chunks,
        idle=idle,
        new_blocks=_new_blocks(draft) if draft.new_blocks else (),
        preempted=preempted,
        preempted_for=preempted_for,
        finished=tuple(state.finished_ids),
        num_decodes=draft.num_decodes,
        max_steps=_run_length(state) if may_run else 1,
    )
    state.finished_ids.clear()
    state.reset_ids.clear()
    return batch


def _idle(state: SchedulerState, draft: Draft) -> tuple[str, ...]:
    """Those who decode and are left out of this step."""
    left_out = [
        request
        for name, request in state.catching_up.items()
        if request.decodes_on_wire and name not in draft.scheduled
    ]
    return tuple(request.request_id for request in sorted(left_out, key=_order))


def _chunks(state: SchedulerState, draft: Draft) -> tuple[Chunk, ...]:
    """What those compute who had to be touched, but for those of whom the runner knows."""
    chunks = []
    for request, num_tokens in draft.scheduled.values():
        caught_up = _catch_up(state, request, num_tokens)
        if not _decodes(request, draft, caught_up):
            chunks.append(Chunk(request.request_id, num_tokens, caught_up))
    return tuple(chunks)


def _new_blocks(draft: Draft) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The blocks of those who ran before: an admission says its own."""
    fresh = {request.request_id for request, _ in draft.admitted}
    return tuple((name, tuple(blocks)) for name, blocks in draft.new_blocks.items() if name not in fresh)


def _admission(request: Request, resumed: bool) -> Admission:
    return Admission(
        request_id=request.request_id,
        num_tokens=request.num_tokens,
        num_prompt_tokens=request.submit.num_prompt_tokens,
        num_computed_tokens=request.num_computed_tokens,
        block_ids=tuple(request.block_ids),
        token_ids=None if request.token_ids is None else tuple(request.token_ids),
        sampling=request.submit.sampling,
        resumed=resumed,
    )


def _catch_up(state: SchedulerState, request: Request, num_tokens: int) -> bool:
    """Count scheduled tokens as computed; whether the request has caught up and samples."""
    request.num_computed_tokens += num_tokens
    if request.num_computed_tokens < request.num_tokens + request.num_in_flight:
        return False
    del state.catching_up[request.request_id]
    state.lockstep.join(request)
    return True


def _decodes(request: Request, draft: Draft, caught_up: bool) -> bool:
    """Whether the runner knows without being told; counts those for whom it does."""
    if request.decodes_on_wire:
        draft.num_decodes += 1
        return True
    request.decodes_on_wire = caught_up
    return False
