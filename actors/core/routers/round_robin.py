"""Taking turns."""

from bisect import bisect_left

from actors.core.records import dataclass
from actors.core.request import Submit
from actors.core.routers.fleet import Fleet
from actors.core.routers.policy import RouterPolicy


@dataclass(frozen=True)
class RoundRobin(RouterPolicy):
    """Each replica in its turn, whatever it has to do."""

    def new_memory(self) -> list[int]:
        return [0]

    def choose(self, request: Submit, fleet: Fleet) -> int:
        up, turn = fleet.up, fleet.memory[0]
        replica = up[bisect_left(up, turn) % len(up)]
        fleet.memory[0] = (replica + 1) % fleet.num_replicas
        return replica
