"""Sizes that a step's rows are padded to on a CPU, so that there are few of them.

oneDNN compiles a kernel for every number of rows of every linear layer and keeps it, about half a megabyte
each: without a ladder, memory grows for as long as new numbers of rows occur. Over 4,000 small requests of
the embedded model 183 kernels were made instead of 1,270, 655 MB were resident instead of 1,147 (134 of each
are the pool's), at 5.4 ms of processor time a request instead of 5.1 (`python -m tests.bench memory`).
"""

SMALL = (0, 1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)
STEPS_PER_OCTAVE = 8


def padded(num_rows: int) -> int:
    """Return the least size on the ladder that holds `num_rows`; beyond 64 at most an eighth above it."""
    if num_rows <= SMALL[-1]:
        return next(size for size in SMALL if size >= num_rows)
    stride = (1 << ((num_rows - 1).bit_length() - 1)) // STEPS_PER_OCTAVE
    return -(-num_rows // stride) * stride
