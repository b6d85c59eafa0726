"""Lower numbers first: vLLM's `--scheduling-policy priority`."""

from dataclasses import dataclass

from actors.core.policies.policy import Policy
from actors.core.request import Request


@dataclass(frozen=True)
class Priority(Policy):
    """By (priority, arrival, id); the least urgent, latest arrived is preempted first."""

    def rank(self, request: Request) -> tuple[int, float, str]:
        return (request.submit.priority, request.submit.arrival_s, request.request_id)

    def victim(self, running: dict[str, Request]) -> Request:
        return max(running.values(), key=lambda r: (r.submit.priority, r.submit.arrival_s))
