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
        slack_s = request.submit.arrival_s + target_s - view.now_s
        return (0, slack_s) if slack_s > 0 else (2, slack_s)
