"""Deficit longest prefix (Cao et al., arXiv:2501.14312): `--policy docs/policies/deficit.py:Deficit`."""

from dataclasses import dataclass
from typing import ClassVar

from sundog import Policy, Refusal, Request, View


@dataclass(frozen=True)
class Deficit(Policy):
    """Tenants take turns of `quantum` tokens; within a turn the longest prefix in the cache goes first."""

    is_dynamic: ClassVar[bool] = True
    quantum: int = 20_000
    output_weight: int = 2

    def new_memory(self) -> dict[str | None, int]:
        return {}  # the tokens that each tenant was given

    def refuse(self, request: Request, view: View) -> Refusal | None:
        tenants = {other.submit.tenant for other in (*view.waiting, *view.running.values())}
        floor = min((view.memory[each] for each in tenants if each in view.memory), default=0)
        own = view.memory.get(request.submit.tenant, 0)
        view.memory[request.submit.tenant] = max(own, floor)  # absence earns no credit
        return None

    def admitted(self, request: Request, view: View) -> None:
        new = request.submit.num_prompt_tokens - view.num_computed_tokens(request)
        # A decode pool's engine has not been asked to refuse.
        view.memory[request.submit.tenant] = view.memory.get(request.submit.tenant, 0) + max(new, 0)

    def sampled(self, request: Request, view: View) -> None:
        view.memory[request.submit.tenant] += self.output_weight

    def rank(self, request: Request, view: View) -> tuple[int, int]:
        return (view.memory.get(request.submit.tenant, 0) // self.quantum, -view.num_hit_tokens(request))
