"""Time and targets: `--policy docs/least_slack.py:LeastSlack`."""

from sundog import Policy, Rank, Request, View


class LeastSlack(Policy):
    """The request that is late soonest goes first; one that is late already is lost, and goes last."""

    def rank(self, request: Request, view: View) -> Rank | tuple[int, float]:
        target_s = request.submit.slo_ttft_s
        if target_s is None:
            return (1, request.submit.arrival_s)
        due_s = request.submit.arrival_s + target_s
        return (2, due_s) if view.now_s >= due_s else Rank((0, due_s), until_s=due_s)
