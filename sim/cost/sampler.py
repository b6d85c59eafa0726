"""Sampler of a step: passes over its logits, and the filters of a version of vLLM.

Logits become float32, then tokens are sampled. Greedy requests only need the largest logit. For others the
logits are divided by the temperature, made probabilities and divided by noise, the largest of which wins: in
vLLM's `Sampler` and `random_sample` that is 46 bytes a logit (cast 6, temperature 8, softmax 12, noise 4,
division 12, maximum 4). Filters come between:

- until 0.16 torch sorts all logits (`apply_top_k_top_p`); of fewer than 128 rows all at once, of more one
  row on each multiprocessor;
- from 0.17 on a Triton kernel finds the threshold, a row on each multiprocessor; below 8 rows torch does;
- from 0.21 on FlashInfer filters and samples in one kernel, without a sort and without noise.

Their times were measured by their authors: vLLM's pull request 40376 times all three with 64 to 512 rows of
32,768 and 131,072 logits, on an unnamed GPU as fast as the H100 of request 25824. Lines through these points
are within a sixth of them (`test_sampler.py`); of torch's launches only the kernels' own time counts, since
the host runs ahead of the GPU. Nothing is fitted to a server.

The filters of 0.17 and later are scaled to other GPUs by bandwidth. A sort is not bound by it: 128 rows of
151,936 logits, sorted, filtered and drawn, took 2.95 ms on an H200 (LightLLM's pull request 1573), which an
H100 by the lines above takes, too, with 0.7 of the bandwidth. It is scaled by the rate of the multiprocessors
instead, and takes at least the time to read and write keys and indices in each pass.
"""

from typing import Final, NamedTuple

from sundog.actors.config.generation import Drawing
from sundog.actors.core.engine_version import parse_version
from sundog.sim.hardware.formats import DTYPE_BYTES
from sundog.sim.hardware.gpu import Gpu

LOGIT_PASSES: Final = 2
"""Passes of greedy requests over float32 logits; 0.31 ms for 256 x 128,256 on an RTX 4090."""
DRAWN_PASSES: Final = 11.5
FUSED_PASSES: Final = 3.5
"""Passes of cast and temperature alone."""
DRAWN_KERNELS, SORT_KERNELS = 4, 22
KERNEL_S: Final = 2.5e-6
TRITON_SINCE: Final = (0, 17)
FLASHINFER_SINCE: Final = (0, 21)
TRITON_ROWS: Final = 8
SEGMENTED_ROWS: Final = 128
MEASURED_BANDWIDTH: Final = 3.35e12
MEASURED_RATE: Final = 66.9e12
"""Operations per second in float32 of the H100, by 128 units in each multiprocessor."""
UNITS: Final = 128
FEWER_UNITS: Final = {(8, 0): 64, (7, 5): 64}
"""Units for float32 in a multiprocessor, of other compute capabilities (A100; T4)."""
SORTED_BYTES: Final = 4 * 2 * (4 + 8)
"""Bytes per logit of a radix sort: four passes read and write a key and an index."""


class FilterTime(NamedTuple):
    """Seconds of a filter: a constant, per token of the vocabulary, and per logit."""

    launch_s: float
    token_s: float
    logit_s: float


SORTED = FilterTime(SORT_KERNELS * KERNEL_S, 0.0, 100e-12)
SEGMENTED = FilterTime(SORT_KERNELS * KERNEL_S, 7.3e-9, 76.5e-12)
TRITON = {False: FilterTime(168e-6, 2.7e-9, 0.0), True: FilterTime(77e-6, 2.13e-9, 0.0)}
"""Times of each wave of rows, without and with top_k."""
FLASHINFER = {False: FilterTime(14e-6, 0.35e-9, 4.65e-12), True: FilterTime(24e-6, 0.885e-9, 7e-12)}


class Sampler:
    """Seconds of the sampler for a number of rows of `vocab_size` logits, by a version of vLLM."""

    def __init__(self, drawing: Drawing, version: str, vocab_size: int, gpu: Gpu) -> None:
        self._drawing, self._version, self._vocab_size = drawing, parse_version(version), vocab_size
        self._bandwidth = gpu.memory_bandwidth_bytes_per_s * gpu.efficiency.weight_bandwidth
        self._slower = MEASURED_BANDWIDTH / gpu.memory_bandwidth_bytes_per_s
        self._num_sms = gpu.num_sms
        units = FEWER_UNITS.get((int(gpu.compute_capability), round(gpu.compute_capability * 10) % 10), UNITS)
        self._sorts_slower = MEASURED_RATE / (gpu.peak("float32") * UNITS / units)

    def seconds(self, num_rows: int) -> float:
        """Return the seconds for this many rows."""
        drawing, version = self._drawing, self._version
        if drawing.is_greedy:
            return self._passes_s(LOGIT_PASSES, num_rows)
        drawn_s = self._passes_s(DRAWN_PASSES, num_rows) + DRAWN_KERNELS * KERNEL_S
        if not drawing.has_top_k and not drawing.has_top_p:
            return drawn_s
        if version >= FLASHINFER_SINCE:
            fused_s = self._passes_s(FUSED_PASSES, num_rows)
            return fused_s + self._filter_s(FLASHINFER[drawing.has_top_k], num_rows)
        if version >= TRITON_SINCE and num_rows >= TRITON_ROWS:
            waves = max(num_rows / self._num_sms, 1.0)
            return drawn_s + waves * self._filter_s(TRITON[drawing.has_top_k], num_rows)
        return drawn_s + self._sort_s(num_rows)

    def _passes_s(self, num_passes: float, num_rows: int) -> float:
        return num_passes * (num_rows * self._vocab_size * DTYPE_BYTES["float32"]) / self._bandwidth

    def _sort_s(self, num_rows: int) -> float:
        took = SORTED if num_rows < SEGMENTED_ROWS else SEGMENTED
        each_s = took.token_s + took.logit_s * num_rows
        moved_s = SORTED_BYTES * num_rows * self._vocab_size / self._bandwidth
        return took.launch_s + max(each_s * self._vocab_size * self._sorts_slower, moved_s)

    def _filter_s(self, took: FilterTime, num_rows: int) -> float:
        each_s = took.token_s + took.logit_s * num_rows
        return took.launch_s + each_s * self._vocab_size * self._slower
