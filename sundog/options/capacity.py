"""Options of the search for the largest load."""

from dataclasses import dataclass

from sundog.options.row import Real, Whole, option
from sundog.options.serving import on_ray


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityTerms:
    """Options of the search for the largest load."""

    replications: int = option(5, Whole(1, 1000), "Samples of the workload, each with a largest load.")
    confidence: float = option(0.95, Real(0.5, 0.9999), "Confidence of the interval.")
    resolution: float = option(0.01, Real(1e-4, 0.5), "Relative precision of each largest load.")
    judge_s: float = option(
        300.0,
        Real(0, 1e7),
        "Least seconds of steady traffic to judge, after a lead-in. 0: judge a description's own requests.",
    )
    jobs: int | None = option(None, Whole(1, 1024), "Processes; one per core if not given.")
    on: str | None = on_ray(
        "Ray cluster to run on: ray starts one here; ray:HOST:PORT joins one.", kept=False
    )
