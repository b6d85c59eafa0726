"""Move the state on by a step that has been planned, and say it as a diff."""

from actors.core.batch import Admission, Batch, Chunk
from actors.core.queue.lockstep import InFlight
from actors.core.request import Request
from actors.core.step.decode_runs import run_length
from actors.core.step.draft import Draft, admission_order
from actors.core.step.speculate import verify
from actors.core.step.state import SchedulerState


def commit(state: SchedulerState, draft: Draft, may_run: bool) -> Batch:
    """Move the state on by the planned step, and say it as a diff."""
    lockstep = state.lockstep
    lockstep.planned = draft.step
    lockstep.in_flight.append(InFlight(draft.step))
    idle = _idle(state, draft) if state.catching_up else ()
    # Stated as of before this step: read it before the step counts as computed.
    admitted: tuple[Admission, ...] = ()
    if draft.admitted:
        admitted = tuple([_admission(request, resumed) for request, resumed in draft.admitted])
    drafts = verify(state, draft) if state.speculates else ()
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
        finished=tuple(state.finished_ids) if state.finished_ids else (),
        num_decodes=draft.num_decodes,
        max_steps=run_length(state) if may_run else 1,
        drafts=drafts,
    )
    state.finished_ids.clear()
    state.reset_ids.clear()
    return batch


def _idle(state: SchedulerState, draft: Draft) -> tuple[str, ...]:
    """Decoding requests that are left out of this step."""
    left_out = [
        request
        for name, request in state.catching_up.items()
        if request.decodes_on_wire and name not in draft.scheduled
    ]
    if len(left_out) > 1:
        left_out.sort(key=admission_order)
    return tuple([request.request_id for request in left_out])


def _chunks(state: SchedulerState, draft: Draft) -> tuple[Chunk, ...]:
    """What the touched requests compute, except decodes that the runner knows of."""
    chunks = []
    for request, num_tokens in draft.scheduled.values():
        caught_up = _catch_up(state, request, num_tokens)
        if state.is_pipelined:
            _keep_apart(state, draft, request, caught_up)
        if not _decodes(request, draft, caught_up):
            chunks.append(Chunk(request.request_id, num_tokens, caught_up))
    return tuple(chunks)


def _keep_apart(state: SchedulerState, draft: Draft, request: Request, caught_up: bool) -> None:
    """Note when a request was scheduled, and when its next token may be computed.

    As vLLM 0.32 does: a token that is planned ahead reaches the first stage as many steps later as there are
    stages.
    """
    request.last_step = draft.step
    if caught_up and state.config.async_scheduling:
        request.next_decode_step = draft.step + state.config.pipeline_parallel_size


def _new_blocks(draft: Draft) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """New blocks of requests that ran before; an Admission names its own."""
    if not draft.admitted:
        return tuple(draft.new_blocks.items())
    fresh = {request.request_id for request, _ in draft.admitted}
    return tuple([(name, blocks) for name, blocks in draft.new_blocks.items() if name not in fresh])


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
    """Whether the runner knows that the request decodes; if so, count it."""
    if request.decodes_on_wire:
        draft.num_decodes += 1
        return True
    request.decodes_on_wire = caught_up
    return False
