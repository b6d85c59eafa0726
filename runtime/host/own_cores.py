"""Cores that this process may use."""

import os


def own_cores() -> list[int]:
    """Return the numbers of the cores; all of the machine's if unknown."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
