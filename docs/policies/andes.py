"""Andes (Liu et al., arXiv:2404.16283): `--policy docs/policies/andes.py:Andes --preempt-for-priority`."""

from dataclasses import dataclass
from math import inf

from sundog import Policy, Rank, Request, View


@dataclass(frozen=True)
class Andes(Policy):
    """Readers need tokens at their own pace: who is `lead_s` ahead of it makes room for who is late."""

    lead_s: float = 10.0

    def rank(self, request: Request, view: View) -> Rank:
        ahead = self.urgency(request, view)
        until_s = view.token_due_s(request) - self.lead_s if ahead else inf
        return Rank((ahead, request.submit.arrival_s), until_s=until_s)

    def urgency(self, request: Request, view: View) -> int:
        return int(not view.is_past(view.token_due_s(request) - self.lead_s))

    def victim(self, running: dict[str, Request], view: View) -> Request:
        return max(reversed(running.values()), key=view.token_due_s)
