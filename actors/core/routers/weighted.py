"""Several reasons at once, each with a weight."""

from collections.abc import Callable
from typing import ClassVar

from actors.core.records import dataclass
from actors.core.request import Submit
from actors.core.routers.affinity import home, session_of
from actors.core.routers.fleet import Fleet
from actors.core.routers.policy import INDEXES, IndexName, RouterPolicy

WEIGHTS = ("prefix", "load", "tokens", "prefill", "session")


@dataclass(frozen=True)
class Weighted(RouterPolicy):
    """The highest sum of weighted scores, each from 0 to 1, as gateways for inference combine them.

    `prefix` is the share of the prompt that is cached (by `index`, as of `prefix-aware`); `load`, `tokens`
    and `prefill` are 1 for a replica that has none, and 0 for the one that has most, of unfinished requests,
    of their tokens, or of prompt tokens to compute; `session` is 1 for the session's own replica.
    """

    follows_steps: ClassVar[bool] = True

    prefix: float = 0
    load: float = 0
    tokens: float = 0
    prefill: float = 0
    session: float = 0
    index: IndexName = "own"

    def __post_init__(self) -> None:
        if self.index not in INDEXES[1:]:
            raise ValueError(f"index is {self.index!r}: known are own, events")
        for name in WEIGHTS:
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 0 and finite")
        if not any(getattr(self, name) for name in WEIGHTS):
            raise ValueError(f"all weights are 0: give one of {', '.join(WEIGHTS)}, as in prefix=1,load=0.5")
        if not self.prefix:
            object.__setattr__(self, "index", "none")

    def choose(self, request: Submit, fleet: Fleet) -> int:
        scores = dict.fromkeys(fleet.up, 0.0)
        if self.prefix:
            for replica in scores:
                hit_tokens = fleet.num_hit_tokens(request, replica)
                scores[replica] += self.prefix * hit_tokens / request.num_prompt_tokens
        for weight, count in (
            (self.load, fleet.num_requests),
            (self.tokens, fleet.num_tokens),
            (self.prefill, fleet.num_prefill_tokens),
        ):
            if weight:
                _add(scores, weight, count)
        name = session_of(request)
        if self.session and name is not None:
            scores[home(name, fleet)] += self.session
        return max(scores, key=lambda replica: (scores[replica], -fleet.num_requests(replica)))


def _add(scores: dict[int, float], weight: float, count: Callable[[int], int]) -> None:
    """Add what each replica has less than the one that has most."""
    most = max(map(count, scores))
    for replica in scores if most else ():
        scores[replica] += weight * (1 - count(replica) / most)
