"""How many threads torch computes with, and on which cores."""

import os

import torch

from actors.core.config import ConfigError


def set_threads(num_threads: int) -> None:
    """Compute with `num_threads`; ConfigError where the machine has fewer cores."""
    num_cores = os.cpu_count() or 1
    if not 1 <= num_threads <= num_cores:
        raise ConfigError(f"--num-threads {num_threads}: this machine has 1 to {num_cores} to give")
    torch.set_num_threads(num_threads)


def share_cores(part: int, num_parts: int) -> None:
    """Keep this process to its part of the cores that it has, and torch to as many threads.

    Parts do not overlap; where there are fewer cores than parts, nothing is changed. Call it in the main
    thread, before others are started.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    own = cores[part * len(cores) // num_parts : (part + 1) * len(cores) // num_parts]
    if len(cores) >= num_parts:
        os.sched_setaffinity(0, own)
        torch.set_num_threads(min(torch.get_num_threads(), len(own)))
