"""Process memory for tensors: what a step frees is kept for the next.

Huge pages from the start (torch's `THP_MEM_ALLOC_ENABLE=1`) are not used: they make loading half as slow
again on virtual machines whose host gives memory page by page. Weights move later (huge_pages.py).
"""

import ctypes
import os
import sys
import threading
from contextlib import suppress

M_ARENA_MAX, M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -8, -1, -3
KEPT_BYTES = 1 << 30
MOST_MMAP_THRESHOLD = 32 << 20
"""Largest threshold that glibc accepts (mallopt(3))."""
LEAST_PRIORITY = 19
HUGE_PAGE = 2 << 20


def prepare_memory() -> None:
    """Configure the allocator before torch is imported; no effect if the system cannot.

    Otherwise the logits and every large buffer of a step would be returned at its end, and faulted in and
    zeroed in the next. One arena, because a thread's own returns everything larger than 32 MiB.
    """
    if (libc := _glibc()) is not None:
        libc.mallopt(M_ARENA_MAX, 1)
        libc.mallopt(M_MMAP_THRESHOLD, MOST_MMAP_THRESHOLD)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def give_back_free() -> None:
    """Return free memory to the system, such as the first copies of packed weights."""
    if (libc := _glibc()) is not None:
        libc.malloc_trim(0)


def ran_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out, in Python, or in torch on a device or CPU."""
    import torch

    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


def ask_kernel(address: int, num_bytes: int, advice: int) -> str | None:
    """Call madvise(2) for a range of memory; return why it failed, or None."""
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    if madvise(ctypes.c_void_p(address), ctypes.c_size_t(num_bytes), advice):
        return os.strerror(ctypes.get_errno())
    return None


def whole_huge_pages(address: int, num_bytes: int) -> tuple[int, int]:
    """Return the first and last address of the huge pages inside a range of memory; nothing fits unless the
    last is greater.
    """
    return -(-address // HUGE_PAGE) * HUGE_PAGE, (address + num_bytes) // HUGE_PAGE * HUGE_PAGE


def give_way() -> None:
    """Give this thread the lowest priority, so that all others run first."""
    with suppress(OSError):  # then this is as urgent as all else
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LEAST_PRIORITY)


def _glibc() -> ctypes.CDLL | None:
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    return libc if libc is not None and hasattr(libc, "malloc_trim") else None
