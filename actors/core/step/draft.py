"""A step while it is being planned, and what both of its phases do to it."""

from collections.abc import Iterable

from actors.core.batch import Blocked
from actors.core.request import Request
from actors.core.step.state import SchedulerState


class Draft:
    """What has been decided so far, and what is left of the budget.

    `reserved_blocks` are kept for running requests while others are admitted before them.
    """

    __slots__ = (
        "admitted",
        "blocked",
        "budget",
        "has_members",
        "new_blocks",
        "num_decodes",
        "preempted",
        "preempted_for",
        "quotas",
        "reserved_blocks",
        "scheduled",
        "step",
        "threshold",
    )

    def __init__(self, step: int, budget: int, threshold: int) -> None:
        self.step = step
        self.budget = budget
        self.threshold = threshold
        self.num_decodes = 0
        self.has_members = False
        """Whether the members of the lockstep have been given their tokens."""
        self.reserved_blocks = 0
        self.scheduled: dict[str, tuple[Request, int]] = {}
        self.new_blocks: dict[str, tuple[int, ...]] = {}
        self.admitted: list[tuple[Request, bool]] = []
        self.preempted: list[Request] = []
        self.preempted_for: list[str] = []
        self.quotas: dict[str, int | None] = {}
        """Quotas of running requests, asked before anything is decided, so that they hold throughout."""
        self.blocked: Blocked | None = None


def preempt(state: SchedulerState, draft: Draft, victim: Request, needy: Request) -> None:
    """Preempt a victim for `needy`; the tokens it was given in this very step return to the budget.

    Blocks registered for tokens that now are not computed are forgotten. vLLM leaves them in the prefix
    cache, where a later hit finds keys and values that were never written.
    """
    if victim.request_id in draft.scheduled and not state.leaves_uncomputed:
        state.kv.unregister(victim, victim.num_computed_tokens)
    if draft.has_members and victim.in_lockstep:
        draft.budget += 1
        draft.num_decodes -= 1
    state.preempt(victim)
    draft.preempted.append(victim)
    draft.preempted_for.append(needy.request_id)
    if victim.request_id in draft.scheduled:
        draft.budget += draft.scheduled.pop(victim.request_id)[1]
        draft.new_blocks.pop(victim.request_id, None)


def pending(state: SchedulerState, draft: Draft, request: Request) -> int:
    """Tokens that a running request could compute in this step, the budget aside."""
    computed, in_flight = request.num_computed_tokens, request.num_in_flight
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
    if num_tokens > 1 and draft.quotas:
        quota = draft.quotas.get(request.request_id)
        num_tokens = num_tokens if quota is None else min(num_tokens, quota)
    return max(min(num_tokens, state.config.max_model_len - computed - 1), 0)


def with_lookahead(state: SchedulerState, num_tokens: int) -> int:
    """The tokens whose slots a running request holds when it has computed `num_tokens`."""
    config = state.config
    if not config.num_lookahead_tokens:
        return num_tokens
    return min(num_tokens + config.num_lookahead_tokens, config.max_model_len)


def ask_quotas(state: SchedulerState, draft: Draft) -> None:
    """Ask the policy for a quota of each running request with several tokens to compute. O(these)."""
    if state.quota is not None:
        for name, request in state.catching_up.items():
            if pending(state, draft, request) - request.num_drafts > 1:
                draft.quotas[name] = state.quota(request, state.view)


def blocks_to_grow(state: SchedulerState, draft: Draft, running: Iterable[Request]) -> int:
    """Blocks that these running requests need in this step, if the budget suffices for each."""
    num_blocks = 0
    for request in running:
        if request.in_lockstep:
            num_blocks += request.next_grow == draft.step
        else:
            num_tokens = min(pending(state, draft, request), draft.budget)
            held = state.kv.num_blocks(with_lookahead(state, request.num_computed_tokens + num_tokens))
            num_blocks += max(held - len(request.block_ids), 0)
    return num_blocks


def admission_order(request: Request) -> int:
    """The order in which running requests are scheduled and reported: that of their latest admission."""
    return request.order
