"""Latency of messages to an engine core in its own process, for the simulated graph."""

from typing import ClassVar

from sundog.actors.config.cost_values import check_costs, parse_costs
from sundog.actors.core.records import dataclass


@dataclass(frozen=True, slots=True)
class HopCosts:
    """Latencies in seconds: `submit` for each request or abort from the Router to the Scheduler, including
    the Router's own time; `token` for each prompt token, which is serialised; `output` for messages
    back.
    """

    most_s: ClassVar[float] = 1.0

    submit: float = 0.0
    token: float = 0.0
    output: float = 0.0

    def __post_init__(self) -> None:
        check_costs(self)

    @property
    def delays_requests(self) -> bool:
        """Whether requests take any time to reach the Scheduler."""
        return self.submit > 0 or self.token > 0


NO_HOPS = HopCosts()


def parse_hop_costs(text: str) -> HopCosts:
    """Read `submit=0.0001,token=1e-8,output=0.00005`; raises ConfigError as `parse_costs` does."""
    return parse_costs(text, NO_HOPS)
