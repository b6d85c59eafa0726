"""Multi-level feedback queues with skip-join: short answers first, without knowing lengths."""

from dataclasses import dataclass
from typing import ClassVar

from actors.core.policies.orders import least_urgent
from actors.core.queue.policy import Policy
from actors.core.queue.view import View
from actors.core.request import Request


@dataclass(frozen=True)
class Mlfq(Policy):
    """FastServe's queues (Wu et al., arXiv:2305.05920, section 4.1) as a function of the past.

    Level i gives `quantum_steps` * 2^i output tokens, then the request is demoted to the next. It
    joins at the first level whose quantum its prefill fits into (skip-join), a step being worth
    `prompt_tokens_per_step`. A request that has waited `starve_steps` is at the top until it has used the top
    quantum, so none starves. With `preempt_for_priority` higher levels take the place of lower ones at once,
    as in the paper.
    """

    is_dynamic: ClassVar[bool] = True

    quantum_steps: int = 16
    num_levels: int = 8
    prompt_tokens_per_step: int = 128
    starve_steps: int = 2000

    def __post_init__(self) -> None:
        least = {"quantum_steps": 1, "num_levels": 1, "prompt_tokens_per_step": 1, "starve_steps": 0}
        for name, value in least.items():
            if getattr(self, name) < value:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least {value}")

    def rank(self, request: Request, view: View) -> int:
        return self.urgency(request, view)

    def rank_key(self, request: Request, view: View) -> int:
        return self.level(request.submit.num_prompt_tokens, view.num_output_tokens(request))

    def urgency(self, request: Request, view: View) -> int:
        starved = view.num_waited_steps(request) >= self.starve_steps
        if starved and view.num_new_tokens(request) < self.quantum_steps:
            return 0
        return self.level(request.submit.num_prompt_tokens, view.num_output_tokens(request))

    def level(self, num_prompt_tokens: int, num_output_tokens: int) -> int:
        """The level of a request with this many output tokens. O(levels)."""
        level, quantum, lowest = 0, self.quantum_steps, self.num_levels - 1
        while level < lowest and quantum * self.prompt_tokens_per_step < num_prompt_tokens:
            level, quantum = level + 1, quantum * 2
        while level < lowest and quantum <= num_output_tokens:
            num_output_tokens -= quantum
            level, quantum = level + 1, quantum * 2
        return level

    def victim(self, running: dict[str, Request], view: View) -> Request:
        return least_urgent(self, running, view)
