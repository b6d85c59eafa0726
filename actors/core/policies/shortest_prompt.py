"""Shortest prompt first: the prefill is the one part of the work whose size is known in advance."""

from actors.core.queue.policy import Policy
from actors.core.queue.view import View
from actors.core.records import dataclass
from actors.core.request import Request


@dataclass(frozen=True)
class ShortestPrompt(Policy):
    """Shortest job first (Conway, Maxwell and Miller, Theory of Scheduling, 1967, section 8-3)
    with the prompt's tokens for the job's length. Long prompts may wait for as long as short ones
    keep coming.
    """

    def rank(self, request: Request, view: View) -> int:
        return request.submit.num_prompt_tokens
