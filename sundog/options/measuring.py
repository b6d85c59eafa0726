"""How an engine of this machine is measured."""

from dataclasses import dataclass

from sundog.options.kinds import Choice, Real, Switch, Whole
from sundog.options.row import option


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """How a model's engine is measured."""

    device: str = option("cpu", Choice(("cpu", "cuda")), "Where the model runs.")
    num_threads: int | None = option(
        None, Whole(1, 4096), "Threads to compute with, as of `sundog serve`, which is measured with as many."
    )
    seconds: float = option(
        30.0, Real(0, 86_400), "How long steps are measured, about; three rounds at least."
    )
    http: bool = option(True, Switch(), "Measure what a server adds to steps and requests, too.")
