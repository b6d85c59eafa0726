"""Longest cached prefix first: use what the prefix cache holds before it is evicted."""

from typing import ClassVar

from actors.core.queue.policy import Policy
from actors.core.queue.view import View
from actors.core.records import dataclass
from actors.core.request import Request


@dataclass(frozen=True)
class LongestPrefixMatch(Policy):
    """SGLang's cache-aware order (Zheng et al., NeurIPS 2024, section 3, algorithm 1).

    Costs a lookup per waiting request and admission. A request without a hit may wait for as
    long as others with one keep coming.
    """

    is_dynamic: ClassVar[bool] = True

    def rank(self, request: Request, view: View) -> int:
        return -view.num_hit_tokens(request)
