"""All-reduces between the ranks of one machine, by its link."""

from typing import Any

import numpy as np

from sim.cost.tables.interpolate import Coverage, Points, distinct, log_interp, nearest
from sim.hardware.formats import DTYPE_BYTES
from sim.hardware.gpu import Gpu

HOST_S, HOST_FACTOR = 10e-6, 2.3
"""Without access to each other's memory GPUs write to the host's and read from it: every byte takes
two trips at half the duplex, and each all-reduce some handshakes more. Both numbers are from two
measured tables of a pair of RTX PRO 6000 (aiconfigurator-core 0.12.0, vLLM 0.24 with peer access
and 0.19 without): 10 microseconds and 2.3 times the time meet 17 to 1,118 microseconds of 0.002 to
17 MB within 13 %."""


SKEW_S = 2.0e-6
ONE_STAGE_BYTES = {2: 1 << 62, 4: 512 * 1024}
ONE_STAGE_BYTES_OF_MORE = 256 * 1024
"""vLLM reads all ranks' tensors at once below this size (two barriers), and above it scatters the sums
and gathers them (three); two ranks always do the first (`custom_all_reduce.cuh`)."""
LATEST = {1: 0.0, 2: 0.564, 4: 1.029, 8: 1.424}
"""By number of ranks, how far the latest is behind the mean, in standard deviations (normal variables)."""


class AllReduce:
    """vLLM's own all-reduce between ranks, captured in a graph; sizes in elements.

    `tables` are those of the link: of this GPU where the link is its own, else of a card with PCIe.
    """

    def __init__(self, tables: dict[str, Any], gpu: Gpu, ranks: int, coverage: Coverage) -> None:
        points: Points = tables["reduce"]
        own = points[:, 0] == nearest(ranks, distinct(points[:, 0])[0].tolist())
        self._sizes: list[float] = points[own][:, 1].astype(np.float64).tolist()
        seconds = np.maximum.accumulate(tables["reduce_s"][own].astype(np.float64))
        if gpu.link == "pcie" and not _went_through_host(gpu, ranks):
            seconds = HOST_S + HOST_FACTOR * seconds
        self._seconds: list[float] = seconds.tolist()
        self._coverage = coverage
        self._one_stage_bytes = ONE_STAGE_BYTES.get(ranks, ONE_STAGE_BYTES_OF_MORE)
        self._wait_s = SKEW_S * LATEST.get(ranks, LATEST[8])

    def seconds(self, num_elements: int) -> float:
        """One all-reduce, and waiting for the latest rank at its barriers.

        The tables measure ranks that do nothing else and are in step. In a server each reaches a
        barrier a little earlier or later, and all wait for the latest; `SKEW_S` is the standard
        deviation, fitted to the step of one server (Llama-2-70b on four H100, 5 requests a second).
        """
        self._coverage.note("all-reduce", num_elements, self._sizes[0], self._sizes[-1])
        barriers = 2 if num_elements * DTYPE_BYTES["bfloat16"] < self._one_stage_bytes else 3
        return log_interp(num_elements, self._sizes, self._seconds) + barriers * self._wait_s


def tables_of_link(gpu: Gpu) -> str:
    """Whose measured all-reduces are those of this GPU's link."""
    if gpu.link == "nvlink":
        return gpu.key
    return "rtx-pro-6000" if gpu.interconnect_bytes_per_s > PCIE_4 else "l40s"


def _went_through_host(gpu: Gpu, ranks: int) -> bool:
    """Whether the table of the link is of ranks without access to each other's memory already.

    Four and eight L40S reach 4 and 2 GB/s, where two reach 19.
    """
    return ranks > 2 and tables_of_link(gpu) == "l40s"


PCIE_4 = 40e9
"""Between PCIe 4.0 (32 GB/s per direction), which the L40S has, and PCIe 5.0 (64 GB/s)."""
