"""Dense products as they were measured, bounded by what memory and arithmetic allow."""

from typing import Any

import numpy as np

from sim.cost.tables.interpolate import Coverage, Floats, Points, around, distinct, log_interp, rising
from sim.hardware.formats import Format
from sim.hardware.gpu import Gpu

WEIGHT_BYTES = 2
STREAMED = 0.95
KERNEL_S = 2.4e-6
"""No measured product streams its weights faster than 95 % of the data sheet's bandwidth after the
2.4 microseconds of the shortest kernel: products of Llama-3.1-8B in vLLM 0.19 on an RTX PRO 6000
lie within 4 % of this law for few tokens, from 17 MB to 1 GB of weights (profiles of the
LLMServingSim project, MIT). Tables repeat one product and find small weights in the L2 cache, where
a server never finds them."""


class Products:
    """Dense products of (m, k) with (k, n): `curve(n, k)` is seconds at each of `ms`.

    Measured curves are made to rise in m; between measured shapes in log space; beyond them in
    proportion to the weights; never below the floor of bandwidth and arithmetic.
    """

    def __init__(
        self, tables: dict[str, Any], gpu: Gpu, coverage: Coverage, form: Format | None = None
    ) -> None:
        points: Points = tables["gemm"]
        self._coverage = coverage
        self._bandwidth = gpu.memory_bandwidth_bytes_per_s * STREAMED
        self._flops = gpu.peak("bfloat16" if form is None or form.units is None else form.units)
        self._weight_bytes = WEIGHT_BYTES if form is None else form.bits / 8
        self.ms, m_index = distinct(points[:, 0])
        self._ns, n_index = distinct(points[:, 1])
        self._ks, k_index = distinct(points[:, 2])
        grid = np.full((len(self._ns), len(self._ks), len(self.ms)), np.nan)
        grid[n_index.reshape(-1), k_index.reshape(-1), m_index.reshape(-1)] = tables["gemm_s"]
        self._grid = grid

    def curve(self, n: int, k: int) -> Floats:
        """Seconds at each of `ms`."""
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
        """The least seconds at each of `ms` that memory and arithmetic allow."""
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
        """Missing cells from their neighbours in m, the whole made to rise."""
        known = ~np.isnan(values)
        if not known.all():
            xs, ys = self.ms[known].astype(np.float64).tolist(), values[known].tolist()
            values = np.array([log_interp(float(m), xs, ys) for m in self.ms])
        return rising(values)
