"""Hits and memory: `--router docs/routers/sticky_prefix.py:StickyPrefix`."""

from typing import ClassVar

from sundog import Fleet, Router, Submit


class StickyPrefix(Router):
    """A tenant stays where it was last, until another replica knows twice as much of its prompt."""

    index: ClassVar = "own"

    def new_memory(self) -> dict[str | None, int]:
        return {}

    def choose(self, request: Submit, fleet: Fleet) -> int:
        idle_first = sorted(fleet.up, key=fleet.num_requests)
        best = max(idle_first, key=lambda replica: fleet.num_hit_tokens(request, replica))
        last = fleet.memory.get(request.tenant)
        if last not in fleet.up:
            last = best
        if fleet.num_hit_tokens(request, best) > 2 * fleet.num_hit_tokens(request, last):
            last = best
        fleet.memory[request.tenant] = last
        return last
