"""A policy of one's own: `--policy docs/interactive_first.py:InteractiveFirst`."""

from dataclasses import dataclass

from sundog import Policy, Rank, Request, View


@dataclass(frozen=True)
class InteractiveFirst(Policy):
    """The tenant `batch` comes after all others, but waits no longer than `patience_steps`."""

    patience_steps: int = 500

    def rank(self, request: Request, view: View) -> Rank | int:
        num_left = self.patience_steps - view.num_waited_steps(request)
        if request.submit.tenant != "batch" or num_left <= 0:
            return 0
        return Rank(1, until_step=view.step + num_left)  # asked again in that step
