"""Distil dense products in float8 with scales of 128 x 128 blocks.

The package's times include the host's: for few tokens a row takes 58 to 98 microseconds on an H100, 170 to
270 on a B200 and 290 to 380 on an L40S whatever its shape, which a server that replays a captured graph never
sees (DeepSeek-V3's attention with such products, timed in a graph, takes less than in 16 bits). A cell counts
as measured where it takes `OVER` times the median of its GPU's smallest products, and no further from the
rule below than `WILD`. Elsewhere the rule stands: the quicker of the products in 16 bits and in float8 with
one scale a tensor (which read as many bytes, but whose kernels jump from 128 to 256 tokens), and what finding
the scales of activations takes more than a scale that is known (`computescale_perf`); from `MANY` tokens on
times the median ratio of measured cells to that sum.

Against what nobody fitted, attention modules of DeepSeek-V3 timed in a graph with products in 16 bits and by
blocks (128, 64 and 16 heads, 1 to 1,024 tokens), `leave_out.py` prints how far the rule's difference is off.
"""

from pathlib import Path
from typing import Any

import numpy as np

KINDS = ("bfloat16", "fp8", "fp8_block")
OVER, WILD, MANY = 2.0, 2.0, 768
SMALLEST = 1 << 22
"""Weights of a product up to which the host takes longer than any of these GPUs."""
Table = dict[tuple[int, ...], float]
Floats = np.ndarray[Any, np.dtype[np.float64]]


def distil_blocks(products: Path, scales: Path) -> tuple["np.ndarray[Any, Any]", Floats, float, int]:
    """Return points (m, n, k), their seconds, the ratio of measured seconds to the rule, and the number
    of measured cells.
    """
    sixteen, plain, blocks = (_medians(products, ("m", "n", "k"), "gemm_dtype", kind) for kind in KINDS)
    finding = _medians(scales, ("m", "k"), None, "")
    points = np.array([point for point in sorted(plain) if is_kept(point[0])], dtype=np.int64)
    quicker = [min(plain[point], sixteen.get(point, plain[point])) for point in map(tuple, points.tolist())]
    rule = np.array(quicker) + np.array([finding.get((m, k), 0.0) for m, _, k in points.tolist()])
    measured = np.array([blocks.get(point, np.nan) for point in map(tuple, points.tolist())])
    ratio = measured / rule
    small = (points[:, 1] * points[:, 2] <= SMALLEST) & (points[:, 0] <= 64) & ~np.isnan(measured)
    host_s = float(np.median(measured[small])) if small.any() else 0.0
    counts = measured > OVER * host_s
    many = counts & (points[:, 0] >= MANY)
    typical = float(np.median(ratio[many])) if many.any() else 1.0
    counts &= (ratio < WILD * typical) & (ratio > typical / WILD)
    scale = np.where(points[:, 0] >= MANY, typical, 1.0)
    return points, np.where(counts, measured, rule * scale), typical, int(counts.sum())


def is_kept(m: int) -> bool:
    """Return whether this size is stored: every other one up to 16, then multiples of 16; odd ones lie
    on the same steps.
    """
    return m in (1, 2, 4, 8) or m % 16 == 0


def _medians(path: Path, columns: tuple[str, ...], kind: str | None, value: str) -> Table:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    if kind is not None:
        table = table.filter(pc.equal(table[kind], value))
    cells: dict[tuple[int, ...], list[float]] = {}
    points = zip(*(table[name].to_pylist() for name in columns), strict=True)
    for point, latency in zip(points, table["latency"].to_pylist(), strict=True):
        cells.setdefault(point, []).append(latency / 1e3)
    return {point: float(np.median(times)) for point, times in cells.items()}
