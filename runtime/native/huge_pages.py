"""Weights on huge pages, moved once a server answers.

A step reads all weights, and an entry of the TLB covers 4 KiB or 2 MiB. Huge pages from the start make
loading half as slow again on virtual machines whose host gives memory page by page; so the kernel moves the
weights afterwards (Linux 6.1, `MADV_COLLAPSE`), in a thread of the lowest priority. Without support, or
without free huge pages, weights stay where they are.
"""

import logging
import sys
import threading
from collections.abc import Iterable

from torch import nn

from sundog.runtime.host.memory import HUGE_PAGE, ask_kernel, give_way, whole_huge_pages
from sundog.runtime.native.few_bits import FewBitsLinear
from sundog.runtime.native.linear import PackedLinear

_LOG = logging.getLogger("sundog.memory")
MADV_COLLAPSE = 25
Range = tuple[int, int]


def weight_ranges(model: nn.Module) -> set[Range]:
    """Return first and last address of each run of huge pages that holds a model's weights on the CPU."""
    found = set[Range]()
    for module in model.modules():
        if not isinstance(module, nn.Embedding):  # of which a step reads a few rows
            own = module.parameters(recurse=False)
            found |= {(p.data_ptr(), p.nbytes) for p in own if p.device.type == "cpu"}
        if isinstance(module, PackedLinear):
            found.add((module.packed.record.weight or 0, module.packed.num_bytes))
        elif isinstance(module, FewBitsLinear):
            found.add(module.numbers_at)
    inside = {whole_huge_pages(at, size) for at, size in found}
    return {(first, end) for first, end in inside if first < end}


def move_to_huge_pages(
    ranges: Iterable[Range], after: threading.Thread | None = None
) -> threading.Thread | None:
    """Start moving these ranges; return the thread, or None if there is nothing to move or no support.

    It starts `after` another thread, so that a starting server is slowed by one at a time.
    """
    pages = [at for first, end in sorted(ranges) for at in range(first, end, HUGE_PAGE)]
    if not pages or sys.platform != "linux":
        return None
    thread = threading.Thread(target=_move, args=(pages, after), name="huge pages", daemon=True)
    thread.start()
    return thread


def _move(pages: list[int], after: threading.Thread | None) -> None:
    give_way()
    if after is not None:
        after.join()
    for num_moved, at in enumerate(pages):
        if (reason := ask_kernel(at, HUGE_PAGE, MADV_COLLAPSE)) is not None:
            _LOG.info("%d of %d pages of weights are huge ones: %s", num_moved, len(pages), reason)
            return
