"""Orders of the waiting queue, and choices of a preemption victim."""

from math import inf
from typing import ClassVar

from sundog.actors.core.queue.policy import Policy
from sundog.actors.core.queue.view import View
from sundog.actors.core.records import dataclass
from sundog.actors.core.request import Request


@dataclass(frozen=True)
class Fcfs(Policy):
    """First come, first served: vLLM's default policy.

    The victim is the most recently admitted request, which then goes first again. Running requests, including
    decodes, get their tokens before any request is admitted. That is the order of Sarathi-Serve (Agrawal et
    al., OSDI 2024, section 4.2), which keeps decodes from stalling.

    Example:
        >>> import sundog
        >>> run = sundog.replay(
        ...     "traces/chat-poisson-2rps-5min.jsonl.gz", limit=9, policy=sundog.Fcfs,
        ... )
        >>> run.figures["num_finished"]
        9
    """

    returns_to_front: ClassVar[bool] = True


@dataclass(frozen=True)
class PrefillFirst(Policy):
    """First come, first served, but prefills take the token budget before decodes.

    The prefill-prioritising schedule of Orca and early vLLM, as Sarathi-Serve (Agrawal et al., OSDI 2024,
    section 3) describes it: first tokens come sooner, and running answers stall meanwhile. No request is
    admitted into blocks that a running request needs in the same step.
    """

    returns_to_front: ClassVar[bool] = True
    prefills_first: ClassVar[bool] = True


@dataclass(frozen=True)
class Priority(Policy):
    """Order by (priority, arrival, id); the victim is the least urgent, latest arrived request."""

    def rank(self, request: Request, view: View) -> tuple[int, float, str]:
        return (request.submit.priority, request.submit.arrival_s, request.request_id)

    def urgency(self, request: Request, view: View) -> int:
        return request.submit.priority

    def victim(self, running: dict[str, Request], view: View) -> Request:
        return max(running.values(), key=lambda r: (r.submit.priority, r.submit.arrival_s))


@dataclass(frozen=True)
class ShortestPrompt(Policy):
    """Shortest job first by prompt length (Conway, Maxwell and Miller, Theory of Scheduling, 1967, section
    8-3).

    Long prompts may wait as long as short ones keep arriving.
    """

    def rank(self, request: Request, view: View) -> int:
        return request.submit.num_prompt_tokens


@dataclass(frozen=True)
class ShortestRemaining(Policy):
    """SRPT (Schrage, Operations Research 16, 1968) over predicted output tokens, as TRAIL does for language
    models (Shahout et al., ICLR 2025).

    The prediction is `Submit.predicted_tokens`, or `max_tokens` if there is none. An answer longer than
    predicted counts as about to end. With `preempt_for_priority` a shorter request replaces a longer one.
    Long answers may wait as long as short ones keep arriving.
    """

    def rank(self, request: Request, view: View) -> int:
        return self.urgency(request, view)

    def urgency(self, request: Request, view: View) -> int:
        submit = request.submit
        predicted = submit.max_tokens if submit.predicted_tokens is None else submit.predicted_tokens
        return max(min(predicted, submit.max_tokens) - view.num_output_tokens(request), 0)

    def victim(self, running: dict[str, Request], view: View) -> Request:
        return least_urgent(self, running, view)


@dataclass(frozen=True)
class LongestPrefixMatch(Policy):
    """SGLang's cache-aware order (Zheng et al., NeurIPS 2024, section 3, algorithm 1).

    Costs a lookup per waiting request and admission. A request without a hit may wait as long as requests
    with hits keep arriving.
    """

    is_dynamic: ClassVar[bool] = True

    def rank(self, request: Request, view: View) -> int:
        return -view.num_hit_tokens(request)


@dataclass(frozen=True)
class EarliestDeadline(Policy):
    """EDF (Jackson, 1955; Liu and Layland, JACM 20, 1973, section 7) over arrival + `slo_ttft_s`.

    A request without a target gets `default_slo_s`; by default it has no deadline and comes after all that
    have one. No request with a deadline starves, since later requests have later deadlines.
    """

    default_slo_s: float = inf

    def __post_init__(self) -> None:
        if self.default_slo_s < 0:
            raise ValueError(f"default_slo_s is {self.default_slo_s}: it must be at least 0")

    def rank(self, request: Request, view: View) -> float:
        return self.urgency(request, view)

    def urgency(self, request: Request, view: View) -> float:
        slo_s = request.submit.slo_ttft_s
        return request.submit.arrival_s + (self.default_slo_s if slo_s is None else slo_s)

    def victim(self, running: dict[str, Request], view: View) -> Request:
        return least_urgent(self, running, view)


def least_urgent(policy: Policy, running: dict[str, Request], view: View) -> Request:
    """Return the policy's least urgent request; of equals the latest admitted."""
    return max(reversed(running.values()), key=lambda request: policy.urgency(request, view))


def least_recompute(running: dict[str, Request], view: View) -> Request:
    """Return the request that loses the fewest computed tokens; of equals the latest admitted.

    Tokens in blocks shared with another request are not lost. The request with most to lose is never chosen
    while others run, so that one request always advances.
    """
    return min(reversed(running.values()), key=view.num_lost_tokens)


@dataclass(frozen=True)
class VirtualTokenCounter(Policy):
    """Fair sharing between tenants: the tenant with the least service goes first.

    This is algorithm 2 of Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024. The counters
    are those of `core/queue/tenant_service.py`. Requests of a tenant go in order of arrival. Two tenants that
    both always have requests waiting differ in weighted service by at most 2 max(w_p L_input, w_q M), where M
    tokens fit into the cache (theorem 4.4). The paper does not specify preemption: the victim is a request of
    the tenant with the most service.

    Args:
        input_weight: Weight of a prompt token.
        output_weight: Weight of an output token.

    Example:
        >>> import sundog
        >>> sundog.VirtualTokenCounter(output_weight=4).token_weights
        (1, 4)
    """

    is_dynamic: ClassVar[bool] = True
    returns_to_front: ClassVar[bool] = True

    input_weight: float = 1
    output_weight: float = 2

    def __post_init__(self) -> None:
        for name in ("input_weight", "output_weight"):
            if not 0 < getattr(self, name) < inf:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be above 0 and finite")

    @property
    def token_weights(self) -> tuple[float, float]:
        return (self.input_weight, self.output_weight)

    def rank(self, request: Request, view: View) -> float:
        return view.service(request.submit.tenant)

    def rank_key(self, request: Request, view: View) -> tuple[str | None]:
        return (request.submit.tenant,)

    def victim(self, running: dict[str, Request], view: View) -> Request:
        return max(reversed(running.values()), key=lambda r: view.service(r.submit.tenant))


@dataclass(frozen=True)
class Mlfq(Policy):
    """FastServe's multi-level feedback queue (Wu et al., arXiv:2305.05920, section 4.1).

    Level i gives `quantum_steps` * 2^i output tokens, then the request is demoted to the next. It joins at
    the first level whose quantum its prefill fits into (skip-join), a step being worth
    `prompt_tokens_per_step`. A request that has waited `starve_steps` is at the top until it has used the top
    quantum, so none starves. With `preempt_for_priority` higher levels replace lower ones at once, as in the
    paper.
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
        """Return the level of a request with this many output tokens. O(levels)."""
        level, quantum, lowest = 0, self.quantum_steps, self.num_levels - 1
        while level < lowest and quantum * self.prompt_tokens_per_step < num_prompt_tokens:
            level, quantum = level + 1, quantum * 2
        while level < lowest and quantum <= num_output_tokens:
            num_output_tokens -= quantum
            level, quantum = level + 1, quantum * 2
        return level

    def victim(self, running: dict[str, Request], view: View) -> Request:
        return least_urgent(self, running, view)
