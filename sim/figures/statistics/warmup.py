"""Where a run's warm-up ends: an empty server flatters the first requests."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
BATCH = 5


def num_warmup(values: Floats) -> int:
    """How many of the first values to leave out, by MSER-5; at most half of them. O(n).

    Over batches of five, the truncation d that minimises the squared standard error of what is
    left, sum((x - mean)^2) / (n - d)^2 (White, Cobb and Spratt, Winter Simulation Conference 2000).
    A minimum in the second half means that the run never settled: then half is left out.
    """
    count = len(values) // BATCH
    if count < 4:
        return 0
    means = values[: count * BATCH].reshape(count, BATCH).mean(axis=1)
    left = np.arange(count, 0, -1, dtype=np.float64)
    # Sums from each place to the end, about the mean of all so that squares do not cancel.
    centred = means - means.mean()
    sums = np.cumsum(centred[::-1])[::-1]
    squares = np.cumsum((centred**2)[::-1])[::-1]
    errors = (squares - sums**2 / left) / left**2
    return int(np.argmin(errors[: count // 2 + 1])) * BATCH
