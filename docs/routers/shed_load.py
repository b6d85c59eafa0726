"""Refusals: `--router docs/routers/shed_load.py:ShedLoad:most_waiting=4`."""

from dataclasses import dataclass
from typing import ClassVar

from sundog import Fleet, Refusal, Router, Submit


@dataclass(frozen=True)
class ShedLoad(Router):
    """The replica that would begin soonest; while `most_waiting` wait at each, requests are turned away."""

    follows_steps: ClassVar[bool] = True
    most_waiting: int = 8

    def refuse(self, request: Submit, fleet: Fleet) -> Refusal | None:
        if min(map(fleet.num_waiting, fleet.up)) < self.most_waiting:
            return None
        step_s = max(fleet.step_s(replica) or 0.0 for replica in fleet.up)
        return Refusal("all replicas are busy", retry_after_s=round(100 * step_s, 3))

    def score(self, request: Submit, replica: int, fleet: Fleet) -> float:
        fits = fleet.num_free_blocks(replica) * 16 >= request.num_prompt_tokens
        return fits - fleet.num_waiting(replica) - fleet.num_prefill_tokens(replica) / 10_000
