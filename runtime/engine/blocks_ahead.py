"""Preparation of KV blocks on a CPU: they get memory before a prompt needs them.

The cache is lazy: a block gets memory when it is first written. If a host gives a virtual machine its memory
page by page, that takes a fifth of a long prompt's time. A thread with the lowest priority therefore
populates the next blocks behind those in use (Linux 5.14, `MADV_POPULATE_WRITE`). Without it, blocks get
memory from their first writer.
"""

import logging
import sys
import threading
from collections.abc import Sequence

from torch import Tensor

from sundog.actors.core.batch import Batch
from sundog.runtime.host.memory import ask_kernel, give_way

_LOG = logging.getLogger("sundog.memory")
MADV_POPULATE_WRITE = 23
PAGE = 4096
MOST_BYTES = 512 << 20
AT_ONCE = 64
"""Number of blocks after which the thread checks the engine's progress again."""


class BlocksAhead:
    """Thread that keeps `num_ahead` blocks of a cache ready, or as many as `MOST_BYTES` allow.

    Block ids are given out in order the first time.
    """

    def __init__(self, layers: Sequence[Tensor], num_ahead: int) -> None:
        self._layers = layers
        self._num_blocks = len(layers[0])
        self._num_ahead = min(num_ahead, MOST_BYTES // sum(layer[0].nbytes for layer in layers))
        self._num_used = 0
        """First block behind all that have been in use."""
        self._num_ready = 0 if self._num_ahead and sys.platform == "linux" else self._num_blocks
        self._thread: threading.Thread | None = None

    def follow(self, batch: Batch) -> None:
        """Record which blocks a batch uses, and prepare more if few are left."""
        for _, block_ids in batch.new_blocks:
            self._num_used = max(self._num_used, max(block_ids) + 1)
        for admission in batch.admitted:
            if admission.block_ids:
                self._num_used = max(self._num_used, max(admission.block_ids) + 1)
        self.begin()

    def begin(self) -> threading.Thread | None:
        """Prepare blocks if fewer than half of `num_ahead` are ready; return the thread that does so."""
        wanted = min(self._num_used + self._num_ahead // 2, self._num_blocks)
        if self._num_ready < wanted and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._make_ready, name="blocks ahead", daemon=True)
            self._thread.start()
        return self._thread

    def _make_ready(self) -> None:
        give_way()
        while True:
            first = max(self._num_ready, self._num_used)
            end = min(first + AT_ONCE, self._num_used + self._num_ahead, self._num_blocks)
            if first >= end:
                self._num_ready = first
                return
            for layer in self._layers:
                if (reason := _populate(layer[first:end])) is not None:
                    self._num_ready = self._num_blocks
                    return _LOG.info("blocks get memory when they are first written: %s", reason)
            self._num_ready = end


def _populate(blocks: Tensor) -> str | None:
    """Let the system allocate all whole pages of these blocks; return the reason if it does not."""
    begin = -(-blocks.data_ptr() // PAGE) * PAGE
    end = (blocks.data_ptr() + blocks.nbytes) // PAGE * PAGE
    return ask_kernel(begin, end - begin, MADV_POPULATE_WRITE) if begin < end else None
