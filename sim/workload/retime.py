"""Other arrivals for the requests of a trace."""

from collections.abc import Iterable, Iterator
from itertools import repeat

import numpy as np

from actors.core.config import ConfigError
from sim.trace.record import TraceRequest
from sim.workload.streams import stream


def retimed(trace: Iterable[TraceRequest], rate_per_s: float, seed: int) -> Iterator[TraceRequest]:
    """The requests in their order, as a Poisson process, or at once if the rate is infinite.

    Raises ConfigError for rows that come after others: their instants follow from these.
    """
    rng, now_s = stream(seed, "arrivals"), 0.0
    gaps = repeat(0.0) if rate_per_s == np.inf else _gaps(rng, rate_per_s)
    for row in trace:
        if row.after is not None:
            raise ConfigError(
                f"request_rate is for independent requests, and {row.request_id} comes after"
                f" {row.after}: leave it out"
            )
        now_s = round(now_s + next(gaps), 6)
        yield row._replace(arrival_s=now_s)


def _gaps(rng: np.random.Generator, rate_per_s: float) -> Iterator[float]:
    while True:
        yield from rng.exponential(1 / rate_per_s, 4096).tolist()
