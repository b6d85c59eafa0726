"""Number of threads that torch computes with, and their cores."""

import os
from pathlib import Path

import torch

from sundog.actors.core.config import ConfigError
from sundog.runtime.host.own_cores import own_cores

SMALL_BYTES = 2**25
"""Bytes of weights that a thread reads in 1 to 2 ms, as long as a server takes to read one request."""


def set_threads(num_threads: int) -> None:
    """Compute with `num_threads`; ConfigError if this process has fewer cores."""
    num_cores = len(own_cores())
    if not 1 <= num_threads <= num_cores:
        raise ConfigError(f"--num-threads is {num_threads}: there are 1 to {num_cores} cores to compute with")
    torch.set_num_threads(num_threads)


def leave_a_core(model_dir: Path) -> int:
    """Leave a core to the server if the model of a folder is small, unless OMP_NUM_THREADS is set.

    All threads of a step wait for its slowest. If HTTP and clients share the cores, one of them is often late
    by the time of reading a request, which is negligible in a step of a large model, and longer than a short
    step of a small one. Returns the number of threads for a long step, which uses that core, too: the system
    gives it to the server when needed.
    """
    for_long_steps = torch.get_num_threads()
    weight_bytes = sum(
        file.stat().st_size for file in model_dir.glob("*") if file.suffix in (".safetensors", ".gguf")
    )
    if weight_bytes <= SMALL_BYTES and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, min(for_long_steps, len(own_cores()) - 1)))
    return for_long_steps


def share_cores(part: int, num_parts: int) -> None:
    """Restrict this process to its part of the available cores, and torch to as many threads.

    Parts do not overlap; with fewer cores than parts, nothing changes. Call it in the main thread, before
    others start.
    """
    cores = own_cores() if hasattr(os, "sched_setaffinity") else []
    own = cores[part * len(cores) // num_parts : (part + 1) * len(cores) // num_parts]
    if len(cores) >= num_parts:
        os.sched_setaffinity(0, own)
        torch.set_num_threads(min(torch.get_num_threads(), len(own)))
