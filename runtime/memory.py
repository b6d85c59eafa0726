"""How the process takes memory for tensors: on huge pages, and kept from step to step.

A step reads all weights. On pages of 4 KiB the processor looks up a translation for each; from pages of 2 MiB
a product of one row takes a tenth less, of six rows a quarter less (1,024 x 65,536 in bf16, one thread).
"""

import ctypes
import os
import sys

M_ARENA_MAX, M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -8, -1, -3
KEPT_BYTES = 1 << 30
MOST_MMAP_THRESHOLD = 32 << 20
"""The most that glibc takes (mallopt(3))."""


def prepare_memory() -> None:
    """Set both, before torch is imported; where the system cannot, nothing changes.

    Otherwise the logits and every large buffer of a step would be given back at its end, and faulted in and
    zeroed in the next. One arena, because a thread's own gives back whatever is larger than 32 MiB.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is not None and hasattr(libc, "mallopt"):
        libc.mallopt(M_ARENA_MAX, 1)
        libc.mallopt(M_MMAP_THRESHOLD, MOST_MMAP_THRESHOLD)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
