"""Commit a planned step: advance the state, and state the step as a Batch of differences.

A batch may be a decode run, in which nothing but lengths changes. Law: a run leaves the state that its steps
would have left one by one, with the same blocks in the same order.
"""

from sundog.actors.core.batch import Admission, Batch, Chunk
from sundog.actors.core.blocks.runs import BlockNumbers
from sundog.actors.core.policies.guard import GuardedPolicy
from sundog.actors.core.request import Request
from sundog.actors.core.step.draft import Draft
from sundog.actors.core.step.state import SchedulerState


def commit(state: SchedulerState, draft: Draft, may_run: bool) -> Batch:
    """Advance the state by the planned step, and return the step as a Batch."""
    lockstep = state.lockstep
    record = lockstep.begin(draft.step)
    # All that are scheduled are outside the lockstep: if they are as many, none is left out.
    idle = _idle(state, draft) if len(state.catching_up) > len(draft.scheduled) else ()
    # Stated as of before this step: read it before the step counts as computed.
    admitted: tuple[Admission, ...] = ()
    if draft.admitted:
        admitted = tuple([_admission(request, resumed) for request, resumed in draft.admitted])
    drafts = _verify(state, draft) if state.speculates else ()
    chunks = _chunks(state, draft) if draft.scheduled else ()
    if chunks and state.kv.host is not None:
        record.computed = _computed(state, draft)
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
        finished=tuple(state.finished_ids) if state.finished_ids else (),
        num_decodes=draft.num_decodes,
        max_steps=_run_length(state) if may_run else 1,
        drafts=drafts,
    )
    if state.finished_ids:
        state.finished_ids.clear()
    if state.reset_ids:
        state.reset_ids.clear()
    return batch


def admission_order(request: Request) -> int:
    """Return the number of a running request's latest admission, by which running requests are ordered."""
    return request.order


def _idle(state: SchedulerState, draft: Draft) -> tuple[str, ...]:
    """Return the decoding requests that this step leaves out."""
    left_out = [
        request
        for name, request in state.catching_up.items()
        if request.decodes_on_wire and name not in draft.scheduled
    ]
    if len(left_out) > 1:
        left_out.sort(key=admission_order)
    return tuple([request.request_id for request in left_out])


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
        adapter=request.submit.adapter,
        num_host_tokens=request.num_loaded_tokens,
    )


def _verify(state: SchedulerState, draft: Draft) -> tuple[tuple[str, int], ...]:
    """Count the drafts that the step computes, and the requests with drafts as decodes.

    These requests are removed from `draft.scheduled`: the result tells how many of their drafts were
    accepted.
    """
    record, found = state.lockstep.newest, list[tuple[str, int]]()
    assert record is not None, "the step was begun"
    for name, (request, num_tokens) in list(draft.scheduled.items()):
        request.num_tokens_planned = request.num_tokens
        request.num_drafts = 0
        num_drafts = request.num_computed_tokens + num_tokens - request.num_tokens
        if num_drafts > 0:
            request.num_computed_tokens += num_tokens
            request.num_in_flight += 1
            record.samplers.append(request)
            record.drafted[name] = num_drafts
            found.append((name, num_drafts))
            draft.num_decodes += 1
            del draft.scheduled[name]
    return tuple(found)


def _chunks(state: SchedulerState, draft: Draft) -> tuple[Chunk, ...]:
    """Return the chunks of the scheduled requests, without decodes that the runner derives by itself."""
    chunks = []
    for request, num_tokens in draft.scheduled.values():
        caught_up = _catch_up(state, request, num_tokens)
        if state.is_pipelined:
            _keep_apart(state, draft, request, caught_up)
        if not _decodes(request, draft, caught_up):
            chunks.append(Chunk(request.request_id, num_tokens, caught_up))
    return tuple(chunks)


def _computed(state: SchedulerState, draft: Draft) -> list[tuple[Request, int, bool]]:
    """Return each request with chunks, the full blocks that it will have after the step, and whether it
    catches up.
    """
    return [
        (request, request.num_registered_blocks, request.request_id not in state.catching_up)
        for request, _ in draft.scheduled.values()
    ]


def _catch_up(state: SchedulerState, request: Request, num_tokens: int) -> bool:
    """Count scheduled tokens as computed; return True if the request has caught up, and so samples a
    token.
    """
    request.num_computed_tokens += num_tokens
    if request.num_computed_tokens < request.num_tokens + request.num_in_flight:
        return False
    del state.catching_up[request.request_id]
    state.lockstep.join(request)
    return True


def _keep_apart(state: SchedulerState, draft: Draft, request: Request, caught_up: bool) -> None:
    """Record when a request was scheduled, and the first step that may compute its next token.

    As in vLLM 0.32, with S pipeline stages a token that is planned ahead reaches the first stage S steps
    later.
    """
    request.last_step = draft.step
    if caught_up and state.config.async_scheduling:
        request.next_decode_step = draft.step + state.config.pipeline_parallel_size


def _decodes(request: Request, draft: Draft, caught_up: bool) -> bool:
    """Return whether the runner has the request in its decoding set; count it as a decode if so."""
    if request.decodes_on_wire:
        draft.num_decodes += 1
        return True
    request.decodes_on_wire = caught_up
    return False


def _new_blocks(draft: Draft) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return new blocks of requests that ran before; an Admission lists its own."""
    if not draft.admitted:
        return tuple(draft.new_blocks)
    fresh = {request.request_id for request, _ in draft.admitted}
    return tuple([pair for pair in draft.new_blocks if pair[0] not in fresh])


def _run_length(state: SchedulerState) -> int:
    """Return the number of steps, including the planned one, in which only lengths change.

    The run ends when a request reaches its length limit or blocks might run out. Until then waiting requests
    cannot be admitted: free blocks only decrease, no request leaves the batch, and ranks that change during
    the run matter only while a running slot is free.
    """
    lockstep = state.lockstep
    if state.config.async_scheduling and (lockstep.oldest is lockstep.newest or lockstep.fills):
        # The step after it would be planned at once, or names a block when its token is known.
        return 1
    if not lockstep.members or state.catching_up or lockstep.has_spare or _policy_matters(state):
        return 1
    num_steps = 1 + lockstep.steps_that_fit(state.kv.pool.num_free)
    expiry = lockstep.next_expiry()
    return num_steps if expiry is None else min(num_steps, expiry - lockstep.planned + 1)


def _policy_matters(state: SchedulerState) -> bool:
    """Return whether the next step may admit a request because the policy's rank or quota changes."""
    if not state.waiting.places:
        return False
    policy, config = state.policy, state.config
    if state.cadence is not None:
        return True  # what is held back is admitted in a step of its own
    # What a user's policy says of urgency may turn with anything, whatever it declares.
    if config.preempt_for_priority and (policy.is_dynamic or isinstance(policy, GuardedPolicy)):
        return True
    # A smaller quota lets a request in whose first chunk alone has to fit.
    asks_quota = state.quota is not None and not config.scheduler_reserve_full_isl
    # So does a shorter hit, and with a state's block several blocks of a hit are gone at once.
    may_lose_hit = config.keeps_states and not config.scheduler_reserve_full_isl
    return (state.waiting.may_turn or asks_quota or may_lose_hit) and len(
        state.running
    ) < config.max_num_running


def extend(state: SchedulerState, num_steps: int, done_s: float) -> None:
    """Plan `num_steps` more steps like the last one, which a decode run has already done.

    The last but one step of the run ended at `done_s`. Blocks are taken in the order in which single steps
    would have taken them. O(requests that grow), with one slice each. With blocks of 2 tokens, A grows in
    steps 5, 7, 9 and B in 6, 8, 10: the turns are A, B, six blocks are taken, and A gets those at 0, 2, 4, B
    those at 1, 3, 5.
    """
    lockstep, kv = state.lockstep, state.kv
    first, last = lockstep.planned + 1, lockstep.planned + num_steps
    turns, num_blocks = lockstep.grow_through(first, last)
    blocks: BlockNumbers = kv.pool.take(num_blocks)
    if num_blocks == len(turns):
        for turn, request in enumerate(turns):
            request.block_ids.append(blocks[turn])
    else:
        for turn, request in enumerate(turns):
            request.block_ids += blocks[turn :: len(turns)]
    if lockstep.fills:
        for step in range(first, last + 1):
            lockstep.planned = step
            for request in lockstep.due_to_fill(step):
                kv.register(request, lockstep.num_computed(request))
    if state.cadence is not None:
        state.cadence.num_steps += num_steps
    lockstep.done, lockstep.done_s, lockstep.planned = last - 1, done_s, last
