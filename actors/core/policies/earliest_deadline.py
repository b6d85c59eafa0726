"""Earliest deadline first: each request brings its target for the time to first token."""

from math import inf

from actors.core.policies.victims import least_urgent
from actors.core.queue.policy import Policy
from actors.core.queue.view import View
from actors.core.records import dataclass
from actors.core.request import Request


@dataclass(frozen=True)
class EarliestDeadline(Policy):
    """EDF (Jackson, 1955; Liu and Layland, JACM 20, 1973, section 7) over arrival + `slo_ttft_s`.

    A request without a target has `default_slo_s`; by default it has no deadline, and comes after all that
    have one. No request with a deadline waits for ever, as later requests fall due later.
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
