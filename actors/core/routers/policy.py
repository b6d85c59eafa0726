"""What a router policy decides: which replica a request goes to.

Law: a router policy is a frozen object of pure functions. It sees the request and a `Fleet`, facts that a
Router knows in every world, and is asked once for each request (once for all choices of one prompt).
"""

from typing import ClassVar, Literal

from actors.core.request import Submit
from actors.core.routers.fleet import Fleet

IndexName = Literal["none", "own", "events"]
INDEXES = ("none", "own", "events")


class RouterPolicy:
    """A subclass states what it needs and inherits the rest, which is to take the least busy replica."""

    index: IndexName = "none"
    """How `Fleet.num_hit_tokens` knows: from the prompts that were `own` sent, or from the `events` in which
    replicas say what they store and remove."""
    follows_steps: ClassVar[bool] = False
    """Whether `Fleet.num_prefill_tokens` follows what the replicas' steps compute."""

    def score(self, request: Submit, replica: int, fleet: Fleet) -> float:
        """How good a replica is for the request: the one with the highest score is chosen.

        Of equals the one with the fewest unfinished requests, and then the first.
        """
        return 0.0

    def choose(self, request: Submit, fleet: Fleet) -> int:
        """The replica, one of `fleet.up`. It may change `fleet.memory`, as `score` must not."""
        return max(
            fleet.up, key=lambda replica: (self.score(request, replica, fleet), -fleet.num_requests(replica))
        )

    def new_memory(self) -> object:
        """What the policy remembers, made once for each run: `fleet.memory` everywhere else."""
        return None
