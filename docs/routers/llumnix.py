"""Migration: `--router docs/routers/llumnix.py:Llumnix` (Sun et al., "Llumnix", OSDI 2024)."""

from dataclasses import dataclass
from typing import ClassVar

from sundog import Fleet, Router, Submit, Unfinished


@dataclass(frozen=True)
class Llumnix(Router):
    """The freest replica is chosen; one that is left `low` steps until it is full sends a request there."""

    follows_steps: ClassVar[bool] = True
    moves_every_s: ClassVar[float] = 0.1
    low: float = 150

    def score(self, request: Submit | None, replica: int, fleet: Fleet) -> float:
        """The steps for which all its requests could decode, if those that wait had their blocks."""
        waiting = sum(-(-each.num_prefill_tokens // 16) for each in fleet.requests(replica))
        return 16 * (fleet.num_free_blocks(replica) - waiting) / max(fleet.num_requests(replica), 1)

    def moves(self, fleet: Fleet) -> list[tuple[Unfinished, int]]:
        freeness = {replica: self.score(None, replica, fleet) for replica in fleet.up}
        order, pairs = sorted(fleet.up, key=freeness.__getitem__), []
        for source, target in zip(order, order[::-1], strict=True):
            if freeness[source] < self.low and freeness[target] > 2 * self.low:
                pairs += [(each, target) for each in fleet.requests(source)[-1:]]
        return pairs
