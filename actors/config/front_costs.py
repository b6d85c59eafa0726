"""Cost of a server's front end: the time of an API process for a request and for its tokens."""

from dataclasses import replace
from typing import ClassVar

from sundog.actors.config.cost_values import check_costs, parse_costs
from sundog.actors.core.records import dataclass


@dataclass(frozen=True, slots=True)
class FrontCosts:
    """Seconds of one API process, which does one thing at a time, and the number of such processes.

    `request` is the time until the engine has a request (HTTP, chat template, parameters), and `prompt_token`
    is added to it for each token of the prompt. A request is read in `stages` of equal length, and other
    requests take their turns between two of them. `response` is the time for begin and end of the response,
    during which the process takes no other request. `output_token` is the time to stream a token.
    """

    most_s: ClassVar[float] = 10.0

    request: float = 0.0
    response: float = 0.0
    prompt_token: float = 0.0
    output_token: float = 0.0
    processes: int = 1
    stages: int = 1

    def __post_init__(self) -> None:
        check_costs(self)

    @property
    def delays_requests(self) -> bool:
        """Whether an API process takes any time."""
        return any([getattr(self, name) > 0 for name in TIMES])

    def times(self, factor: float) -> "FrontCosts":
        """Return the same processes, each `factor` times as slow."""
        return replace(self, **{name: getattr(self, name) * factor for name in TIMES})


TIMES = ("request", "response", "prompt_token", "output_token")
NO_FRONT = FrontCosts()


def parse_front_costs(text: str, known: FrontCosts = NO_FRONT) -> FrontCosts:
    """Read `request=0.007,stages=3,prompt_token=1e-6,processes=2`; the rest stays as `known`.

    Raises ConfigError as `parse_costs` does.
    """
    return parse_costs(text, known)
