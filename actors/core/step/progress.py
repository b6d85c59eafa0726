"""Detection of stalls: steps that make no progress.

Law: every request ends, or the error names the request that cannot, and why. Progress is a sampled token or
an ended request. Steps without computation may wait for a result, and steps that only compute prompts lead to
a sample, unless they compute the same ones again and again. Many repetitions of either are a stall, which
only a message from outside could end.
"""

from collections.abc import Mapping
from typing import Final

from sundog.actors.core.batch import Batch, Blocked
from sundog.actors.core.config import ConfigError
from sundog.actors.core.policies import name_of
from sundog.actors.core.policies.guard import GuardedPolicy
from sundog.actors.core.queue.lockstep import Lockstep
from sundog.actors.core.queue.view import Blocks
from sundog.actors.core.request import Request
from sundog.actors.core.step.state import SchedulerState

MAX_EMPTY_STEPS: Final = 50
"""Steps in a row without computation that are not yet a stall; the golden logs have that many."""
MAX_ROUNDS: Final = 50
"""Multiple of all known tokens: if more tokens were computed without a sample, it is a stall."""

FEW_TOKENS: Final = 4096
"""Number of tokens below which stalls are not checked."""


class Stalled(ConfigError):
    """Raised if steps make no progress; the reason names the request that cannot continue, if there is
    one.
    """


class Progress:
    """Counts of planned work since the last progress."""

    __slots__ = ("_num_empty_steps", "_num_tokens", "_num_tokens_looked_at")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Reset the counts after progress."""
        self._num_empty_steps = 0
        self._num_tokens = 0
        self._num_tokens_looked_at = FEW_TOKENS

    def planned(self, state: SchedulerState, batch: Batch) -> None:
        """Count a step, including an empty one that only reports the end of the last request. O(chunks)"""
        samples, num_tokens = batch.num_decodes > 0, 0
        for chunk in batch.chunks:
            samples = samples or chunk.samples
            num_tokens += chunk.num_tokens
        if samples:
            if self._num_tokens or self._num_empty_steps or self._num_tokens_looked_at != FEW_TOKENS:
                self.begin()
        elif num_tokens:
            self._num_empty_steps = 0
            self._num_tokens += num_tokens
        else:
            self._num_empty_steps += 1

    def is_stalled(self, state: SchedulerState) -> bool:
        """Return whether the steps are a stall. O(1), and O(requests) each time the count of tokens doubles.

        While blocks are held for or by another engine, a message from there can end the wait.
        """
        if not state.requests:
            self._num_tokens = 0
            return False
        if state.handovers.is_used and state.handovers.has_blocks and not state.has_fetched:
            self.begin()
            return False
        num_empty = self._num_empty_steps
        if num_empty > MAX_EMPTY_STEPS and num_empty > 2 * state.config.pipeline_parallel_size:
            return True
        if self._num_tokens < self._num_tokens_looked_at:
            return False
        self._num_tokens_looked_at = 2 * self._num_tokens
        num_known = sum([request.num_tokens for request in state.requests.values()])
        return self._num_tokens > MAX_ROUNDS * num_known > 0

    def give_up(self, state: SchedulerState, blocked: Blocked | None) -> None:
        """Raise Stalled with the request that cannot continue, or else fail the user's policy."""
        policy = state.policy
        cannot = cannot_go_on(state.requests, state.lockstep, state.kv, state.config.max_model_len)
        if cannot is not None or not isinstance(policy, GuardedPolicy) or policy.failure is not None:
            raise Stalled(cannot or why_stalled(state, blocked))
        policy.stalled(why_stalled(state, blocked, is_named=True))
        self.begin()


def cannot_go_on(
    requests: Mapping[str, Request], counts: Lockstep, blocks: Blocks, max_model_len: int
) -> str | None:
    """Return the request that can never fit, with the reason; None if each would fit alone."""
    num_blocks = blocks.pool.num_blocks - 1
    for name, request in requests.items():
        num_tokens, num_computed = counts.num_tokens(request), counts.num_computed(request)
        needed = -(-min(num_tokens, max_model_len) // blocks.block_size)
        if needed > num_blocks:
            return (
                f"request {name} has {num_tokens} tokens, which need {needed} KV"
                f" blocks, and there are {num_blocks}: it can never run; give more blocks or shorten it"
            )
        if num_tokens >= max_model_len and 0 < num_computed < num_tokens:
            return (
                f"request {name} has {num_tokens} tokens, all of a context of {max_model_len},"
                " and is computed in chunks, so that its last one never is: raise max_model_len or shorten it"
            )
    return None


def why_stalled(state: SchedulerState, blocked: Blocked | None, *, is_named: bool = False) -> str:
    """Return one line on why no step can change anything; it names the policy unless `is_named`."""
    policy = state.policy
    if isinstance(policy, GuardedPolicy):
        name = policy.name if policy.failure is None else name_of(policy.inner)
    else:
        name = name_of(policy)
    under = "" if is_named else f" under policy {name}"
    last = f"; the next in the queue is {blocked.request_id}, which lacks {blocked.reason}" if blocked else ""
    return f"{len(state.requests)} requests are scheduled again and again{under}, and none gets a token{last}"
