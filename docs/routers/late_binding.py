"""Holding: `--router docs/routers/late_binding.py:LateBinding:most=4`."""

from dataclasses import dataclass

from sundog import Fleet, Router, Submit


@dataclass(frozen=True)
class LateBinding(Router):
    """Requests wait in one line, and go to the first replica that has fewer than `most` of them.

    Between pools they wait for a replica that computes prompts; what that has done is decoded at once.
    """

    most: int = 32

    def choose(self, request: Submit, fleet: Fleet) -> int | None:
        is_free = fleet.num_requests(fleet.idlest) < self.most
        return fleet.idlest if is_free or fleet.role == "decode" else None
