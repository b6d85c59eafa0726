"""Made-up workloads from a seed: which requests come when, how long, after which, of which tenant.

Every random quantity draws from a stream of its own name, so that changing one (another length
distribution, say) leaves the others as they were: two runs can meet the same arrivals.
"""

import numpy as np


def stream(seed: int, name: str) -> "np.random.Generator":  # in quotes: to name it imports `numpy.random`
    """Return the random stream called `name` of a run with this seed."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=tuple(name.encode())))
