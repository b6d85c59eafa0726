"""Lower numbers first: vLLM's `--scheduling-policy priority`."""

from actors.core.queue.policy import Policy
from actors.core.queue.view import View
from actors.core.records import dataclass
from actors.core.request import Request


@dataclass(frozen=True)
class Priority(Policy):
    """By (priority, arrival, id); the least urgent, latest arrived is preempted first."""

    def rank(self, request: Request, view: View) -> tuple[int, float, str]:
        return (request.submit.priority, request.submit.arrival_s, request.request_id)

    def urgency(self, request: Request, view: View) -> int:
        return request.submit.priority

    def victim(self, running: dict[str, Request], view: View) -> Request:
        return max(running.values(), key=lambda r: (r.submit.priority, r.submit.arrival_s))
