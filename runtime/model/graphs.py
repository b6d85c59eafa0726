"""Recorded decode steps, one for each size on the ladder: a step is padded, copied in and replayed.

A recording reads and writes the same tensors each time, so a step's arrays are first copied into those, and
its logits are copied out before the next. On CUDA a recording is a graph: one launch instead of a thousand.
On a CPU it is the work itself, with which tests compare padding and copying with plain steps.

Shapes: M the most requests of a step, B the most blocks of a request, V tokens of the vocabulary.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from sundog.runtime.device.inputs import Inputs, width_of
from sundog.runtime.step.ladder import padded
from sundog.runtime.step.step import Span, Step

Work = Callable[[], None]
Recorder = Callable[[Work], Work]
Forward = Callable[[Inputs[Tensor], tuple[Span, ...]], Tensor]


def replayed(work: Work) -> Work:
    """Return a replacement for a recording that computes everything again."""
    work()
    return work


@contextmanager
def refused_to_wait() -> Iterator[None]:
    """Make work that would wait for the GPU raise, as it would in a recording.

    A real recording that fails would leave torch's allocator and random numbers unusable.
    """
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def on_cuda(device: torch.device) -> Recorder:
    """Return a recorder of CUDA graphs that share one memory pool, since they are replayed one after another.

    All are recorded on one stream, because cuBLAS keeps a workspace (32 MiB on an H200) per stream.
    """
    pool = torch.cuda.graph_pool_handle()
    aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's gap

    def record(work: Work) -> Work:
        here = torch.cuda.current_stream(device)
        aside.wait_stream(here)
        with torch.cuda.stream(aside):  # compiles kernels and takes workspaces, which a recording cannot
            work()
            with refused_to_wait():
                work()
        here.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=aside, capture_error_mode="thread_local"):
            work()
        return graph.replay

    return record


def sizes_up_to(most: int) -> list[int]:
    """Return the numbers of requests that steps are padded to, the largest first."""
    return sorted({padded(number) for number in range(1, most + 1)}, reverse=True)


class DecodeGraphs:
    """Recordings of steps in which up to `max_num_seqs` requests compute their last token, and sample."""

    def __init__(
        self,
        forward: Forward,
        record: Recorder,
        device: torch.device,
        *,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
    ) -> None:
        sizes = sizes_up_to(max_num_seqs)
        most, width = sizes[0], width_of(-(-max_model_len // block_size) + 1)
        self._forward = forward
        self._max_model_len = max_model_len
        self._token = torch.zeros(3, most, dtype=torch.int64, device=device)  # with position and slot
        self._num_keys_M = torch.ones(most, dtype=torch.int32, device=device)
        self._table_MB = torch.zeros(most, width, dtype=torch.int32, device=device)
        self._first_key_M1 = torch.arange(most + 1, dtype=torch.int32, device=device)
        self._first_query_M1 = torch.arange(most + 1, dtype=torch.int32, device=device)
        self._rows_M = torch.arange(most, device=device)
        self._logits_MV: Tensor | None = None
        self._play = {size: record(self._work(size)) for size in sizes}

    def size(self, step: Step) -> int | None:
        """Return the size that this step is padded to; None if it cannot be replayed."""
        num_rows = len(step.token_T)
        if step.scored or num_rows != len(step.sample_rows_R):
            return None
        if not num_rows or any(span.num_queries > 1 for span in step.spans):
            return None
        size = padded(num_rows)
        return size if size in self._play else None

    def logits(self, inputs: Inputs[Tensor]) -> Tensor:
        """Return the logits [padded N, V] of a padded step, valid until the next replay."""
        size, width = inputs.table_NB.shape
        for kept, given in zip(self._token, (inputs.token_T, inputs.position_T, inputs.slot_T), strict=True):
            kept[:size].copy_(given)
        self._num_keys_M[:size].copy_(inputs.num_keys_N)
        self._first_key_M1[: size + 1].copy_(inputs.first_key_N1)
        self._table_MB[:size, :width].copy_(inputs.table_NB)
        self._play[size]()
        assert self._logits_MV is not None
        return self._logits_MV[:size]

    def _work(self, size: int) -> Work:
        token_N, position_N, slot_N = self._token[:, :size]
        none = token_N[:0]
        inputs = Inputs(
            token_N,
            position_N,
            slot_T=slot_N,
            sample_rows_R=self._rows_M[:size],
            row_R=none,
            fed_F=none,
            wiped_B=none,
            first_query_N1=self._first_query_M1[: size + 1],
            first_key_N1=self._first_key_M1[: size + 1],
            num_keys_N=self._num_keys_M[:size],
            table_NB=self._table_MB[:size],
            temperature_R=none,
            top_k_R=none,
            top_p_R=none,
            log_min_p_R=none,
            uniform_R=none,
        )
        # What the host sees of the requests: each may have as many keys as any.
        last_N = np.full(size, self._max_model_len - 1, np.int64)
        spans = (Span(0, 1, last_N, np.zeros((size, self._table_MB.shape[1]), np.int64)),)

        def work() -> None:
            logits_NV = self._forward(inputs, spans)
            if self._logits_MV is None:
                self._logits_MV = logits_NV.new_zeros(len(self._rows_M), logits_NV.shape[1])
            self._logits_MV[:size].copy_(logits_NV)

        return work
