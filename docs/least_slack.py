"""Time and targets: `--policy docs/least_slack.py:LeastSlack`."""

from typing import ClassVar

from actors.core.policies import Policy, Request, View


class LeastSlack(Policy):
    """What is soonest late goes first; what is late already goes last, as it is lost anyway."""

    is_dynamic: ClassVar[bool] = True

    def rank(self, request: Request, view: View) -> tuple[int, float]:
        target_s = request.submit.slo_ttft_s
        if target_s is None:
            return (1, request.submit.arrival_s)
        due_s = request.submit.arrival_s + target_s
        return (2, due_s) if view.is_past(due_s) else (0, due_s)
