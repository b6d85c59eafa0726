"""How many threads torch computes with."""

import os

import torch

from actors.core.config import ConfigError


def set_threads(num_threads: int) -> None:
    """Compute with `num_threads`; ConfigError where the machine has fewer cores."""
    num_cores = os.cpu_count() or 1
    if not 1 <= num_threads <= num_cores:
        raise ConfigError(f"--num-threads {num_threads}: this machine has 1 to {num_cores} to give")
    torch.set_num_threads(num_threads)
