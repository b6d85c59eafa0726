"""Andes (Liu et al., arXiv:2404.16283): `--policy docs/policies/andes.py:Andes --preempt-for-priority`."""

from dataclasses import dataclass
from typing import ClassVar

from actors.core.policies import Policy, Request, View


@dataclass(frozen=True)
class Andes(Policy):
    """Readers need tokens at their own pace: who is `lead_s` ahead of it makes room for who is late."""

    is_dynamic: ClassVar[bool] = True
    lead_s: float = 10.0

    def rank(self, request: Request, view: View) -> tuple[int, float]:
        return (self.urgency(request, view), request.submit.arrival_s)

    def urgency(self, request: Request, view: View) -> int:
        return int(view.token_due_s(request) - view.now_s > self.lead_s)

    def victim(self, running: dict[str, Request], view: View) -> Request:
        return max(reversed(running.values()), key=view.token_due_s)
