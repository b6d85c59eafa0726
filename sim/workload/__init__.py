"""Generated workloads: arrivals, lengths, sessions and tenants from a description and a seed.

Every random quantity has its own named random stream, so that a change of one (such as another distribution
of lengths) leaves the others unchanged: two runs can have the same arrivals. docs/workloads.md describes the
files.
"""

import numpy as np


def stream(seed: int, name: str) -> "np.random.Generator":  # in quotes: to name it imports `numpy.random`
    """Return the random stream called `name` of a run with this seed."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=tuple(name.encode())))
