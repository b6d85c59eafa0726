"""Chance: `--policy docs/lottery.py:Lottery`."""

from dataclasses import dataclass

from sundog import Policy, Request, View


@dataclass(frozen=True)
class Lottery(Policy):
    """Tickets are drawn when a request arrives; one tenant's are worth more than the others'."""

    favoured: str = "chat"
    tickets: float = 4

    def rank(self, request: Request, view: View) -> float:
        tickets = self.tickets if request.submit.tenant == self.favoured else 1
        return -(view.random(request) ** (1 / tickets))
