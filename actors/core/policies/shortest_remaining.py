"""Shortest remaining answer first, by a prediction that came with the request."""

from actors.core.policies.victims import least_urgent
from actors.core.queue.policy import Policy
from actors.core.queue.view import View
from actors.core.records import dataclass
from actors.core.request import Request


@dataclass(frozen=True)
class ShortestRemaining(Policy):
    """SRPT (Schrage, Operations Research 16, 1968) over predicted output tokens, as for language
    models TRAIL does (Shahout et al., ICLR 2025).

    The prediction is `Submit.predicted_tokens`, or `max_tokens` where there is none.
    An answer that outlives its prediction counts as about to end. With `preempt_for_priority` a
    shorter request takes the place of a longer one. Long answers may wait for as long as short
    ones keep coming.
    """

    def rank(self, request: Request, view: View) -> int:
        return self.urgency(request, view)

    def urgency(self, request: Request, view: View) -> int:
        submit = request.submit
        predicted = submit.max_tokens if submit.predicted_tokens is None else submit.predicted_tokens
        return max(min(predicted, submit.max_tokens) - view.num_output_tokens(request), 0)

    def victim(self, running: dict[str, Request], view: View) -> Request:
        return least_urgent(self, running, view)
