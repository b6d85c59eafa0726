"""A policy of one's own: `--policy docs/interactive_first.py:InteractiveFirst`."""

from dataclasses import dataclass
from typing import ClassVar

from actors.core.policies import Policy, Request, View


@dataclass(frozen=True)
class InteractiveFirst(Policy):
    """The tenant `batch` comes after everybody else, but waits no longer than `patience_steps`."""

    is_dynamic: ClassVar[bool] = True  # a rank changes while its request waits

    patience_steps: int = 500

    def rank(self, request: Request, view: View) -> int:
        patient = not view.has_waited(request, self.patience_steps)
        return 1 if request.submit.tenant == "batch" and patient else 0
