"""Open-loop arrivals as load generators make them."""

import numpy as np

from sim.workload import stream


def exact_poisson(rate_per_s: float, count: int, seed: int, name: str) -> list[float]:
    """`count` arrivals with exponential gaps, rescaled so that they take exactly count / rate."""
    gaps = stream(seed, name).exponential(1.0, count)
    times = np.cumsum(gaps)
    scaled: list[float] = (times * (count / rate_per_s / times[-1])).round(9).tolist()
    return scaled
