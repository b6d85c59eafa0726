"""Measured operators of one GPU, interpolated: each is asked for seconds at some size.

Between measured sizes latencies are interpolated in log space, beyond the last ones the slope of
the last two goes on; `Coverage` keeps how far beyond.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import as_file, files
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Points = NDArray[np.int64]

FOLDER = files("sim.cost.tables") / "data"


def has_tables(gpu: str) -> bool:
    """Whether there are tables of the GPU of this name (as `sim.hardware` calls its file)."""
    return (FOLDER / f"{gpu}.npz").is_file()


@dataclass(slots=True)
class Coverage:
    """How far outside the measured sizes each operator was asked: the largest factor."""

    factors: dict[str, float] = field(default_factory=dict)

    def note(self, operator: str, value: float, smallest: float, largest: float) -> None:
        """An operator was asked for `value`, measured from `smallest` to `largest`."""
        if smallest <= value <= largest:
            return
        factor = float(max(value / largest, smallest / max(value, 1e-9)))
        if factor > self.factors.get(operator, 1.0):
            self.factors[operator] = factor


@cache
def load(gpu: str) -> dict[str, Any]:
    """The arrays of one GPU's file."""
    with as_file(FOLDER / f"{gpu}.npz") as path, np.load(path) as data:
        return {name: data[name] for name in data.files}


def log_interp(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """`ys` at `x`, straight lines between logarithms, beyond the ends as well; all above 0."""
    if len(xs) == 1:
        return ys[0]
    i = min(max(bisect_left(xs, x) - 1, 0), len(xs) - 2)
    share = math.log(x / xs[i]) / math.log(xs[i + 1] / xs[i])
    between: float = ys[i] * (ys[i + 1] / ys[i]) ** share
    return between


def nearest(value: float, known: Sequence[int]) -> int:
    """The known size nearest in ratio."""
    return min(known, key=lambda size: (abs(math.log(size / max(value, 1e-9))), size))


def around(value: int, known: Sequence[int]) -> tuple[int, int, float]:
    """The two known sizes to interpolate between, and the share of the second."""
    if value in known:
        return value, value, 0.0
    below = [size for size in known if size < value][-2:] or list(known[:1])
    above = [size for size in known if size > value][:2]
    low, high = (below[-1], above[0]) if above and below[-1] < value else (known[-2], known[-1])
    if below[-1] > value:
        low, high = known[0], known[1]
    return low, high, math.log(value / low) / math.log(high / low)


class Products:
    """Dense products of (m, k) with (k, n): `curve(n, k)` is seconds at each of `ms`."""

    def __init__(self, tables: dict[str, Any], coverage: Coverage) -> None:
        points: Points = tables["gemm"]
        self._coverage = coverage
        self.ms, m_index = np.unique(points[:, 0], return_inverse=True)
        self._ns, n_index = np.unique(points[:, 1], return_inverse=True)
        self._ks, k_index = np.unique(points[:, 2], return_inverse=True)
        grid = np.full((len(self._ns), len(self._ks), len(self.ms)), np.nan)
        grid[n_index.reshape(-1), k_index.reshape(-1), m_index.reshape(-1)] = tables["gemm_s"]
        self._grid = grid

    def curve(self, n: int, k: int) -> Floats:
        """Seconds at each of `ms`, interpolated between the measured shapes around it."""
        for name, size, known in (("gemm n", n, self._ns), ("gemm k", k, self._ks)):
            self._coverage.note(name, size, known[0], known[-1])
        n0, n1, n_share = around(n, self._ns.tolist())
        k0, k1, k_share = around(k, self._ks.tolist())
        low = self._between(n0, k0, k1, k_share)
        high = self._between(n1, k0, k1, k_share)
        curve: Floats = low * (high / low) ** n_share
        return curve

    def _between(self, n: int, k0: int, k1: int, share: float) -> Floats:
        row = self._grid[np.searchsorted(self._ns, n)]
        low, high = (self._filled(row[np.searchsorted(self._ks, k)]) for k in (k0, k1))
        between: Floats = low * (high / low) ** share
        return between

    def _filled(self, values: Floats) -> Floats:
        """Missing cells from their neighbours in m."""
        known = ~np.isnan(values)
        if known.all():
            return values
        xs, ys = self.ms[known].astype(np.float64).tolist(), values[known].tolist()
        return np.array([log_interp(float(m), xs, ys) for m in self.ms])


def heads_like(
    points: Points, num_heads: int, num_kv_heads: int, head_dim: int
) -> tuple[NDArray[np.bool_], int, int]:
    """Which rows were measured with heads most like these, and the heads they have.

    First the head's size, then the number of queries that share a key, then the most keys.
    """
    dim = nearest(head_dim, np.unique(points[:, 2]).tolist())
    rows = points[:, 2] == dim
    group = num_heads / num_kv_heads
    pairs = {(int(h), int(kv)) for h, kv in points[rows][:, :2]}
    heads, kv_heads = min(
        pairs,
        key=lambda pair: (
            abs(math.log(pair[0] / pair[1] / group)),
            abs(math.log(pair[1] / num_kv_heads)),
            pair,
        ),
    )
    rows &= (points[:, 0] == heads) & (points[:, 1] == kv_heads)
    return rows, heads, kv_heads


class ContextAttention:
    """Attention of a prompt's chunk over what came before it and itself.

    A chunk of `new` tokens after `before` has new x before + new (new + 1) / 2 pairs of a query
    and a key; it takes what a whole prompt with as many pairs takes. Heads that were not measured
    take the share of the most similar that were.
    """

    def __init__(
        self, tables: dict[str, Any], heads: int, kv_heads: int, dim: int, coverage: Coverage
    ) -> None:
        points: Points = tables["context"]
        rows, measured, _ = heads_like(points, heads, kv_heads, dim)
        self._lengths: list[float] = points[rows][:, 3].astype(np.float64).tolist()
        scale = heads / measured * dim / points[rows][0, 2]
        seconds = tables["context_s"][rows].astype(np.float64) * scale
        self._seconds: list[float] = seconds.tolist()
        self._coverage = coverage

    def seconds(self, new: int, before: int) -> float:
        """One layer, one chunk."""
        pairs = new * before + new * (new + 1) / 2
        length = max((math.sqrt(8 * pairs + 1) - 1) / 2, 1.0)
        self._coverage.note("context attention", length, self._lengths[0], self._lengths[-1])
        return log_interp(length, self._lengths, self._seconds)


class GenerationAttention:
    """Attention of one token of each of some requests over its context.

    What counts is how many (request, key head) rows are read, so a model with more key heads than
    were measured is priced as that many more requests. Between measured batches in log space,
    between contexts in straight lines, as reading them takes time.
    """

    def __init__(
        self, tables: dict[str, Any], heads: int, kv_heads: int, dim: int, coverage: Coverage
    ) -> None:
        points: Points = tables["generation"]
        rows, _, measured_kv = heads_like(points, heads, kv_heads, dim)
        self._requests_per_request = kv_heads / measured_kv
        scale = dim / points[rows][0, 2]
        chosen, seconds = points[rows], tables["generation_s"][rows].astype(np.float64) * scale
        self._batches = np.unique(chosen[:, 3]).astype(np.float64)
        self._rows: list[tuple[Floats, Floats]] = []
        for batch in self._batches:
            own = chosen[:, 3] == batch
            # A step writes its token first: the context it reads is one longer.
            self._rows.append((chosen[own][:, 4].astype(np.float64) + 1, seconds[own]))
        self._coverage = coverage

    def curve(self, num_requests: int) -> tuple[Floats, Floats]:
        """Contexts, and one layer's seconds for so many requests of that context each."""
        batch = num_requests * self._requests_per_request
        self._coverage.note("decode batch", batch, self._batches[0], self._batches[-1])
        last = len(self._batches) - 1
        i = min(max(int(np.searchsorted(self._batches, batch)) - 1, 0), max(last - 1, 0))
        (xs0, ys0), (xs1, ys1) = self._rows[i], self._rows[min(i + 1, last)]
        xs = xs0 if len(xs0) <= len(xs1) else xs1
        low, high = np.interp(xs, xs0, ys0), np.interp(xs, xs1, ys1)
        share = math.log(batch / self._batches[i]) / math.log(2.0) if last else 0.0
        seconds: Floats = low * (high / low) ** share
        return xs, seconds


class AllReduce:
    """vLLM's own all-reduce between ranks, captured in a graph; sizes in elements."""

    def __init__(self, tables: dict[str, Any], ranks: int, coverage: Coverage) -> None:
        points: Points = tables["reduce"]
        own = points[:, 0] == nearest(ranks, np.unique(points[:, 0]).tolist())
        self._sizes: list[float] = points[own][:, 1].astype(np.float64).tolist()
        self._seconds: list[float] = tables["reduce_s"][own].astype(np.float64).tolist()
        self._coverage = coverage

    def seconds(self, num_elements: int) -> float:
        """One all-reduce."""
        self._coverage.note("all-reduce", num_elements, self._sizes[0], self._sizes[-1])
        return log_interp(num_elements, self._sizes, self._seconds)


class Experts:
    """The experts of a layer, tokens routed unevenly as in practice (power law 1.2).

    For a model that was not measured, the most similar: first by experts per token and number of
    experts, then by the size of an expert, whose share of the time is taken.
    """

    def __init__(
        self, tables: dict[str, Any], shape: tuple[int, int, int, int], ranks: int, coverage: Coverage
    ) -> None:
        hidden, inner, per_token, num_experts = shape
        points: Points = tables["experts"]

        def unlike(key: tuple[int, ...]) -> tuple[float, float, tuple[int, ...]]:
            k_hidden, k_inner, k_per_token, k_experts, k_ranks = key
            routing = (k_per_token / per_token, k_experts / num_experts)
            size = k_hidden * k_inner / k_ranks * ranks / (hidden * inner)
            return sum(abs(math.log(ratio)) for ratio in routing), abs(math.log(size)), key

        key = min({tuple(map(int, row[:5])) for row in points}, key=unlike)
        own = (points[:, :5] == key).all(axis=1)
        share = (hidden * inner / ranks) / (key[0] * key[1] / key[4])
        self._tokens: list[float] = points[own][:, 5].astype(np.float64).tolist()
        seconds = tables["experts_s"][own].astype(np.float64) * share
        self._seconds: list[float] = seconds.tolist()
        self._coverage = coverage

    def seconds(self, num_tokens: int) -> float:
        """One layer's experts."""
        self._coverage.note("experts", num_tokens, self._tokens[0], self._tokens[-1])
        return log_interp(num_tokens, self._tokens, self._seconds)
