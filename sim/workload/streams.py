"""Named random streams of one seed."""

import numpy as np


def stream(seed: int, name: str) -> np.random.Generator:
    """The random stream called `name` of a run with this seed."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=tuple(name.encode())))
