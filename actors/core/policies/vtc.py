"""Fair share among tenants: the virtual token counter."""

from dataclasses import dataclass
from math import inf
from typing import ClassVar

from actors.core.queue.policy import Policy
from actors.core.queue.view import View
from actors.core.request import Request


@dataclass(frozen=True)
class VirtualTokenCounter(Policy):
    """The least served tenant first, its requests in order of arrival (Sheng et al., "Fairness in
    Serving Large Language Models", OSDI 2024, algorithm 2).

    The counters are `core/tenant_service.py`'s. Two tenants that both always have requests waiting differ
    in weighted service by at most 2 max(w_p L_input, w_q M), where M tokens fit into the cache
    (theorem 4.4). Blocks are taken back from the most served tenant, which the paper leaves open.
    """

    is_dynamic: ClassVar[bool] = True
    returns_to_front: ClassVar[bool] = True

    input_weight: float = 1
    output_weight: float = 2

    def __post_init__(self) -> None:
        for name in ("input_weight", "output_weight"):
            if not 0 < getattr(self, name) < inf:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be above 0 and finite")

    @property
    def token_weights(self) -> tuple[float, float]:
        return (self.input_weight, self.output_weight)

    def rank(self, request: Request, view: View) -> float:
        return view.service(request.submit.tenant)

    def rank_key(self, request: Request, view: View) -> tuple[str | None]:
        return (request.submit.tenant,)

    def victim(self, running: dict[str, Request], view: View) -> Request:
        return max(reversed(running.values()), key=lambda r: view.service(r.submit.tenant))
