"""Measured matrix products, and communication between ranks."""

from typing import Any

import numpy as np

from sundog.sim.cost.tables.interpolate import (
    Floats,
    Lines,
    Points,
    around,
    distinct,
    log_interp,
    nearest,
    rising,
)
from sundog.sim.cost.tables.outliers import mended_line
from sundog.sim.cost.work import Coverage
from sundog.sim.hardware.formats import DTYPE_BYTES, WeightFormat
from sundog.sim.hardware.gpu import Gpu

WEIGHT_BYTES = 2
STREAMED = 0.95
KERNEL_S = 2.4e-6
"""Seconds of the shortest kernel: no measured product streams its weights faster than 95 % of the data
sheet's bandwidth after these 2.4 microseconds. Products of Llama-3.1-8B in vLLM 0.19 on an RTX PRO 6000
lie within 4 % of this law for few tokens, from 17 MB to 1 GB of weights (profiles of the LLMServingSim
project, MIT). Tables repeat one product and find small weights in the L2 cache, where a server never
finds them.
"""

SUSTAINED = {"h100": 741e12, "h200": 741e12}
"""FLOP/s in 16 bits that a server's products reach at most, by GPU. Tables repeat a product at full clock
and reach 800e12 and more on these two; a server that computes prompts all the time is nearer its power
limit. The number is fitted: of 735, 700, 716 and 741e12, tried on Qwen3-14B at 8 requests a second, it
is the one that is also published (cuBLAS on an H100 SXM, 6,144 x 6,144 x 6,144 normal random numbers,
by the fast.cu project, which gives 798e12 for 8,192 cubed). Other GPUs use their tables unchanged.
"""


class Products:
    """Dense products of (m, k) with (k, n): `curve(n, k)` has the seconds at each of `ms`.

    Measured curves are made to rise in m; between measured shapes they are interpolated in log space; beyond
    them they grow in proportion to the weights. No value is below the floor of bandwidth and arithmetic.
    """

    def __init__(
        self, tables: dict[str, Any], gpu: Gpu, coverage: Coverage, form: WeightFormat | None = None
    ) -> None:
        points: Points = tables["gemm"]
        self._coverage = coverage
        self._bandwidth = gpu.memory_bandwidth_bytes_per_s * STREAMED
        self._flops = gpu.peak("bfloat16" if form is None or form.units is None else form.units)
        if form is None or form.units is None:
            self._flops = SUSTAINED.get(gpu.key, self._flops)
        self._weight_bytes = WEIGHT_BYTES if form is None else form.bits / 8
        self.ms, m_index = distinct(points[:, 0])
        self._ns, n_index = distinct(points[:, 1])
        self._ks, k_index = distinct(points[:, 2])
        grid = np.full((len(self._ns), len(self._ks), len(self.ms)), np.nan)
        grid[n_index.reshape(-1), k_index.reshape(-1), m_index.reshape(-1)] = tables["gemm_s"]
        self._grid = grid

    @property
    def least_n(self) -> int:
        """Width of the narrowest measured product."""
        return int(self._ns[0])

    def curve(self, n: int, k: int) -> Floats:
        """Return the seconds at each of `ms`."""
        for name, size, known in (("gemm n", n, self._ns), ("gemm k", k, self._ks)):
            self._coverage.note(name, size, known[0], known[-1])
        n0, n1, n_share = around(n, self._ns.tolist())
        k0, k1, k_share = around(k, self._ks.tolist())
        low = self._between(n0, k0, k1, k_share)
        high = self._between(n1, k0, k1, k_share)
        beyond = max(n / n1, 1.0) * max(k / k1, 1.0)
        curve: Floats = np.maximum(low * (high / low) ** n_share * beyond, self.floor(n, k))
        return curve

    def floor(self, n: int, k: int) -> Floats:
        """Return the least seconds at each of `ms` that memory and arithmetic allow."""
        read_s = KERNEL_S + n * k * self._weight_bytes / self._bandwidth
        compute_s = 2.0 * n * k * self.ms.astype(np.float64) / self._flops
        floor: Floats = np.maximum(read_s, compute_s)
        return floor

    def _between(self, n: int, k0: int, k1: int, share: float) -> Floats:
        row = self._grid[np.searchsorted(self._ns, n)]
        low, high = (self._filled(row[np.searchsorted(self._ks, k)]) for k in (k0, k1))
        between: Floats = low * (high / low) ** share
        return between

    def _filled(self, values: Floats) -> Floats:
        known = ~np.isnan(values)
        if not known.all():
            xs, ys = self.ms[known].astype(np.float64).tolist(), values[known].tolist()
            values = np.array([log_interp(float(m), xs, ys) for m in self.ms])
        return rising(values)


HOST_S, HOST_FACTOR = 10e-6, 2.3
"""Seconds and factor of GPUs without access to each other's memory, which use the host's: a byte takes two
trips at half the duplex, and each all-reduce some handshakes more. Both numbers come from two measured
tables of a pair of RTX PRO 6000 (aiconfigurator-core 0.12.0, vLLM 0.24 with peer access and 0.19
without): 10 microseconds and 2.3 times the time match 17 to 1,118 microseconds of 0.002 to 17 MB within
13 %.
"""


SKEW_S = 1.6e-6
ONE_STAGE_BYTES = {2: 1 << 62, 4: 512 * 1024}
ONE_STAGE_BYTES_OF_MORE = 256 * 1024
"""Bytes below which vLLM reads all ranks' tensors at once (two barriers); above it scatters the sums and
gathers them (three); two ranks always do the first (`custom_all_reduce.cuh`).
"""
LATEST = {1: 0.0, 2: 0.564, 4: 1.029, 8: 1.424}
"""Delay of the latest rank behind the mean, in standard deviations (normal), by number of ranks."""


class AllReduce:
    """vLLM's own all-reduce between ranks, captured in a graph; sizes in elements.

    `tables` are those of the link: of this GPU if the link is its own, else of a card with PCIe.
    """

    def __init__(self, tables: dict[str, Any], gpu: Gpu, ranks: int, coverage: Coverage) -> None:
        points: Points = tables["reduce"]
        own = points[:, 0] == nearest(ranks, distinct(points[:, 0])[0].tolist())
        self._sizes: list[float] = points[own][:, 1].astype(np.float64).tolist()
        seconds = mended_line(points[own][:, 1], tables["reduce_s"][own].astype(np.float64))
        seconds = np.maximum.accumulate(seconds)
        if gpu.link == "pcie" and not _went_through_host(gpu, ranks):
            seconds = HOST_S + HOST_FACTOR * seconds
        self._seconds: list[float] = seconds.tolist()
        self._coverage = coverage
        self._one_stage_bytes = ONE_STAGE_BYTES.get(ranks, ONE_STAGE_BYTES_OF_MORE)
        in_one = [size for size in self._sizes if size * DTYPE_BYTES["bfloat16"] < self._one_stage_bytes]
        self._one_stage = Lines(np.array(in_one), seconds[: len(in_one)])
        self._wait_s = SKEW_S * LATEST.get(ranks, LATEST[8])

    def seconds(self, num_elements: int) -> float:
        """Return the seconds of an all-reduce, with the wait for the latest rank at its barriers.

        The tables measure ranks that do nothing else and are in step. In a server each reaches a barrier a
        little earlier or later, and all wait for the latest; `SKEW_S` is the standard deviation, fitted to
        TTFT and TPOT of one load (Llama-2-70b on four H100, 5 requests a second). Sizes between the last
        measured one below the limit of one stage and that limit extend the line of those below, since the
        next measured one belongs to the other kernel.
        """
        self._coverage.note("all-reduce", num_elements, self._sizes[0], self._sizes[-1])
        if num_elements * DTYPE_BYTES["bfloat16"] < self._one_stage_bytes:
            return self._one_stage.at(float(num_elements)) + 2 * self._wait_s
        return log_interp(num_elements, self._sizes, self._seconds) + 3 * self._wait_s


class Collective:
    """Seconds of gathering from all ranks (`gather`) or of scattering sums (`scatter`), by elements."""

    def __init__(self, tables: dict[str, Any], name: str, gpu: Gpu, ranks: int, coverage: Coverage) -> None:
        points: Points = tables[name]
        own = points[:, 0] == nearest(ranks, distinct(points[:, 0])[0].tolist())
        coverage.note("exchange ranks", ranks, points[0, 0], points[-1, 0])
        seconds = mended_line(points[own][:, 1], tables[f"{name}_s"][own].astype(np.float64))
        seconds = np.maximum.accumulate(seconds)
        if gpu.link == "pcie" and not _went_through_host(gpu, ranks):
            seconds = HOST_S + HOST_FACTOR * seconds
        self._sizes: list[float] = points[own][:, 1].astype(np.float64).tolist()
        self._seconds: list[float] = seconds.tolist()
        self._coverage = coverage

    def seconds(self, num_elements: int) -> float:
        """Return the seconds for that many elements of 16 bits of all ranks together."""
        self._coverage.note("exchange", num_elements, self._sizes[0], self._sizes[-1])
        return log_interp(num_elements, self._sizes, self._seconds)


class ExpertExchange:
    """Exchange of tokens among all data-parallel ranks (vLLM's `allgather_reducescatter`).

    Every rank gets the hidden states of all tokens and their choice of experts, and then the sums of its own.
    """

    def __init__(self, tables: dict[str, Any], gpu: Gpu, ranks: int, coverage: Coverage) -> None:
        self._there = Collective(tables, "gather", gpu=gpu, ranks=ranks, coverage=coverage)
        self._back = Collective(tables, "scatter", gpu=gpu, ranks=ranks, coverage=coverage)

    def seconds(self, num_tokens: int, hidden: int, per_token: int) -> float:
        """Return the seconds of both ways, with the tokens of all ranks."""
        # A choice is an expert's number and a weight, of 32 bits each.
        there_s = self._there.seconds(num_tokens * (hidden + 4 * per_token))
        return there_s + self._back.seconds(num_tokens * hidden)


def tables_of_link(gpu: Gpu) -> str:
    """Return the GPU whose measured all-reduces are used for this GPU's link."""
    if gpu.link == "nvlink":
        return gpu.key
    return "rtx-pro-6000" if gpu.interconnect_bytes_per_s > PCIE_4 else "l40s"


def _went_through_host(gpu: Gpu, ranks: int) -> bool:
    """Return whether the link's table was already measured without access to each other's memory.

    Four and eight L40S reach 4 and 2 GB/s, where two reach 19.
    """
    return ranks > 2 and tables_of_link(gpu) == "l40s"


PCIE_4 = 40e9
"""Bandwidth between PCIe 4.0 (32 GB/s per direction), which the L40S has, and PCIe 5.0 (64 GB/s)."""
