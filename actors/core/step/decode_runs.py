"""Runs of decode steps: one batch for many steps in which nothing but lengths changes.

Law: a run leaves the state that its steps would have left one by one: the same blocks in the same order.
"""

from actors.core.policies.guard import GuardedPolicy
from actors.core.step.state import SchedulerState


def run_length(state: SchedulerState) -> int:
    """How many steps, the planned one included, can change nothing but lengths.

    A run ends when a request reaches its length limit or blocks might run out. Waiting requests go on
    waiting: blocks only become fewer, no request leaves the batch, and no rank changes, unless it was drawn
    from what a run changes. Even then no order of the queue lets one of it run while no running slot is free.
    """
    lockstep = state.lockstep
    if state.config.async_scheduling and (len(lockstep.in_flight) < 2 or lockstep.fills):
        # The step after it would be planned at once, or names a block when its token is known.
        return 1
    if not lockstep.members or state.catching_up or _policy_matters(state):
        return 1
    num_steps = 1 + lockstep.steps_that_fit(state.kv.pool.num_free)
    expiry = lockstep.next_expiry()
    return num_steps if expiry is None else min(num_steps, expiry - lockstep.planned + 1)


def _policy_matters(state: SchedulerState) -> bool:
    """Whether the next step may admit a request because the policy answers otherwise than in this one."""
    if not state.waiting:
        return False
    policy, config = state.policy, state.config
    # What a user's policy says of urgency may turn with anything, whatever it declares.
    if config.preempt_for_priority and (policy.is_dynamic or isinstance(policy, GuardedPolicy)):
        return True
    # A smaller quota lets a request in whose first chunk alone has to fit.
    asks_quota = state.quota is not None and not config.scheduler_reserve_full_isl
    return (state.waiting.may_turn or asks_quota) and len(state.running) < config.max_num_running


def extend(state: SchedulerState, num_steps: int) -> None:
    """Plan `num_steps` more steps like the last one, which a run has done already.

    Blocks are taken in the order in which single steps would have taken them. O(requests that grow), with one
    slice each.
    """
    lockstep, kv = state.lockstep, state.kv
    first, last = lockstep.planned + 1, lockstep.planned + num_steps
    turns, num_blocks = lockstep.grow_through(first, last)
    blocks = kv.pool.take(num_blocks)
    if num_blocks == len(turns):
        for turn, request in enumerate(turns):
            request.block_ids.append(blocks[turn])
    else:
        for turn, request in enumerate(turns):
            request.block_ids += blocks[turn :: len(turns)]
    for step in range(first, last + 1) if lockstep.fills else ():
        lockstep.planned = step
        for request in lockstep.due_to_fill(step):
            kv.register(request, lockstep.num_computed(request))
    lockstep.done, lockstep.planned = last - 1, last
