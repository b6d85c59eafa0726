"""Where most of the prompt is computed already, unless that replica has too much to do."""

from typing import ClassVar

from actors.core.records import dataclass
from actors.core.request import Submit
from actors.core.routers.fleet import Fleet
from actors.core.routers.policy import INDEXES, IndexName, RouterPolicy


@dataclass(frozen=True)
class PrefixAware(RouterPolicy):
    """The replica on which the prompt is computed first: the fewest tokens to compute, in it and before it.

    What is cached of the prompt counts against the prompts that wait there, token for token, and against
    `load` times the tokens of unfinished requests, whose decodes slow each step. `index` says how the Router
    knows what is cached: from what was sent (`own`) or from the replicas' KV events (`events`). Such a sum of
    tokens is the cost function of NVIDIA Dynamo's KV router, too.
    """

    follows_steps: ClassVar[bool] = True

    index: IndexName = "own"
    load: float = 0.0

    def __post_init__(self) -> None:
        if self.index not in INDEXES[1:]:
            raise ValueError(f"index is {self.index!r}: known are own, events")
        if not 0 <= self.load < float("inf"):
            raise ValueError(f"load is {self.load}: it must be at least 0 and finite")

    def score(self, request: Submit, replica: int, fleet: Fleet) -> float:
        before = fleet.num_prefill_tokens(replica) + self.load * fleet.num_tokens(replica)
        return fleet.num_hit_tokens(request, replica) - before
