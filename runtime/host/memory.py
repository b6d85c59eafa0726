"""The process's memory for tensors: what a step frees is kept for the next.

Not on huge pages from the start, as torch can (`THP_MEM_ALLOC_ENABLE=1`): that makes loading half as slow
again where the host gives a virtual machine its memory page by page. Weights move later (huge_pages.py).
"""

import ctypes
import os
import sys
import threading
from contextlib import suppress

M_ARENA_MAX, M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -8, -1, -3
KEPT_BYTES = 1 << 30
MOST_MMAP_THRESHOLD = 32 << 20
"""The most that glibc takes (mallopt(3))."""
LEAST_PRIORITY = 19
HUGE_PAGE = 2 << 20


def prepare_memory() -> None:
    """Set it before torch is imported; where the system cannot, nothing changes.

    Otherwise the logits and every large buffer of a step would be given back at its end, and faulted in and
    zeroed in the next. One arena, because a thread's own gives back whatever is larger than 32 MiB.
    """
    if (libc := _glibc()) is not None:
        libc.mallopt(M_ARENA_MAX, 1)
        libc.mallopt(M_MMAP_THRESHOLD, MOST_MMAP_THRESHOLD)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def give_back_free() -> None:
    """Give what is free to the system: once weights are packed, their first copies."""
    if (libc := _glibc()) is not None:
        libc.malloc_trim(0)


def ran_out_of_memory(error: BaseException) -> bool:
    """True for what Python, torch on a device and torch on a CPU raise where memory runs out."""
    import torch

    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


def ask_kernel(address: int, num_bytes: int, advice: int) -> str | None:
    """Ask something of a range of memory (madvise(2)); why it was not done, if it was not."""
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    if madvise(ctypes.c_void_p(address), ctypes.c_size_t(num_bytes), advice):
        return os.strerror(ctypes.get_errno())
    return None


def whole_huge_pages(address: int, num_bytes: int) -> tuple[int, int]:
    """First and last address of the huge pages inside a range of memory; none if the last is no later."""
    return -(-address // HUGE_PAGE) * HUGE_PAGE, (address + num_bytes) // HUGE_PAGE * HUGE_PAGE


def give_way() -> None:
    """Let all other threads go before this one."""
    with suppress(OSError):  # then this is as urgent as all else
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LEAST_PRIORITY)


def _glibc() -> ctypes.CDLL | None:
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    return libc if libc is not None and hasattr(libc, "malloc_trim") else None
