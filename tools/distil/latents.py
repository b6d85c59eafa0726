"""Distil attention in latents, sparse attention, and linear attention.

The package timed whole modules of DeepSeek-V3, DeepSeek-V3.2 and GLM-5 with their projections. Kept is
what is left of a module in 16 bits without its dense products (as `Products` prices them): norms, rotary
embedding, the cache, products by head from and to latents, the attention itself. Projections are then the
model's own, in its own format.

Prompts of sparse attention were timed with the host in the way: 1.2 to 1.4 ms whatever the
prompt. Their work is fitted instead to prompts that take `OVER` times that and have at most
`MOST_TOKENS`: so much for a token, for a pair of a query and a key that it chose, for one it looked at.

Linear attention (gated delta rule) was timed by kernel: the convolution and the recurrence are added.
Attention by heads with a window is kept as it is, by window and heads.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sundog.sim.cost.calibrated import nonnegative_least_squares
from sundog.sim.cost.tables.interpolate import log_interp
from sundog.sim.cost.tables.products import Products
from sundog.sim.cost.work import seen_pairs
from tools.distil.experts import Arrays, shortened

OVER, MOST_TOKENS = 1.5, 16_384
LEAST_S = 2e-6
CACHES = {"bfloat16": "", "fp8": "_fp8"}
"""Suffixes of the arrays' names by the dtype of the cache."""


class MeasuredModule(NamedTuple):
    """Model whose module was timed, with the sizes of its projections."""

    name: str
    hidden: int
    query_rank: int
    key_dim: int
    nope_dim: int
    value_dim: int
    index_heads: int = 0
    index_dim: int = 128
    top: int = 2048

    def products(self, heads: int, is_prompt: bool) -> list[tuple[int, int]]:
        """Return (n, k) of the dense products of a rank with this many heads; latents are 512 wide."""
        found = [
            (self.query_rank + 576, self.hidden),
            (heads * self.key_dim, self.query_rank),
            (self.hidden, heads * self.value_dim),
        ]
        if self.index_heads:
            found.append((self.index_heads * self.index_dim, self.query_rank))
            found.append((self.index_dim + self.index_heads, self.hidden))
        elif is_prompt:
            found.append((heads * (self.nope_dim + self.value_dim), 512))
        return found


DENSE = MeasuredModule("deepseek-ai/DeepSeek-V3", 7168, 1536, 192, 128, 128)
SPARSE = (
    MeasuredModule("deepseek-ai/DeepSeek-V3.2", 7168, 1536, 192, 128, 128, 64),
    MeasuredModule("zai-org/GLM-5", 6144, 2048, 256, 192, 256, 32),
)
Rows = list[tuple[tuple[int, ...], float]]


def distil_latents(folder: Path, products: Products, cache: str) -> Arrays:
    """Return seconds of decodes by (heads, batch, context), and of prompts by (heads, tokens).

    `cache` is the dtype of the cache, as in `CACHES`.
    """
    columns = ("num_heads", "batch_size", "step")
    decodes = module_medians(folder / "mla_generation_module_perf.parquet", DENSE.name, columns, cache=cache)
    columns = ("num_heads", "batch_size", "isl")
    prompts = module_medians(folder / "mla_context_module_perf.parquet", DENSE.name, columns, cache=cache)
    prompts = [((heads, tokens), s) for (heads, batch, tokens), s in prompts if batch == 1 and tokens > 1]
    return {
        **_arrays("latent" + CACHES[cache], _cores(DENSE, decodes, products, 1, False)),
        **_arrays("latent_prompt" + CACHES[cache], _cores(DENSE, prompts, products, 1, True)),
    }


def distil_sparse(folder: Path, products: Products, cache: str) -> Arrays:
    """Return the seconds of sparse attention by (place in `SPARSE`, heads, batch, context).

    For prompts, return the seconds of a token, of a chosen pair and of any pair, by (place, heads).
    """
    decodes: Rows = []
    fits: Rows = []
    slopes: list[list[float]] = []
    for place, module in enumerate(SPARSE):
        columns: tuple[str, ...] = ("num_heads", "batch_size", "step")
        rows = module_medians(
            folder / "dsa_generation_module_perf.parquet", module.name, columns, cache=cache
        )
        decodes += [((place, *point), s) for point, s in _cores(module, rows, products, 1, False)]
        columns = ("num_heads", "batch_size", "isl", "step")
        prompts = module_medians(
            folder / "dsa_context_module_perf.parquet", module.name, columns, cache=cache
        )
        for heads in sorted({point[0] for point, _ in prompts}):
            own = [(point[1:], s) for point, s in prompts if point[0] == heads]
            fits.append(((place, heads), 0.0))
            slopes.append(_prompt_slopes(module, heads, own, products))
    return {
        **_arrays("sparse" + CACHES[cache], decodes),
        f"sparse_prompt{CACHES[cache]}": np.array([point for point, _ in fits], dtype=np.int64),
        f"sparse_prompt{CACHES[cache]}_s": np.array(slopes, dtype=np.float64),
    }


def _prompt_slopes(module: MeasuredModule, heads: int, rows: Rows, products: Products) -> list[float]:
    host_s = float(np.median([s for (batch, tokens, _), s in rows if batch * tokens <= 32]))
    columns, seconds = [], []
    for (batch, tokens, before), taken_s in rows:
        if taken_s < OVER * host_s or batch * tokens > MOST_TOKENS:
            continue
        own_s = taken_s - _products_s(module, heads, batch * tokens, products, True)
        work = tokens, seen_pairs(tokens, before, module.top), seen_pairs(tokens, before)
        columns.append([float(batch * each) for each in work])
        seconds.append(max(own_s, LEAST_S))
    weighted = np.array(columns) / np.array(seconds)[:, None]
    norms = np.maximum(np.linalg.norm(weighted, axis=0), 1e-30)
    found = nonnegative_least_squares(weighted / norms, np.ones(len(seconds))) / norms
    errors = np.abs(weighted @ found - 1)
    print(f"  {module.name}, {heads} heads: {len(seconds)} prompts, mean error {errors.mean():.1%}")
    return [float(each) for each in found]


STAND_IN = "vllm_triton_attn"
"""Kernel for heads that a GPU's own kernel does not support."""


def distil_windows(folder: Path, cache: str = "bfloat16") -> Arrays:
    """Return seconds by (window, heads, key heads, head size) and (batch, context), or tokens of a prompt."""
    sizes = ("window_size", "num_heads", "num_key_value_heads", "head_dim")
    decodes = _windowed(folder / "generation_attention_perf.parquet", (*sizes, "batch_size", "step"), cache)
    prompts = _windowed(folder / "context_attention_perf.parquet", (*sizes, "batch_size", "isl"), cache)
    alone = [((*point[:4], point[5]), s) for point, s in prompts if point[4] == 1]
    return {**_arrays("window", decodes), **_arrays("window_prompt", alone)}


def _windowed(path: Path, columns: tuple[str, ...], cache: str) -> Rows:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    table = table.filter(
        pc.and_(pc.greater(table["window_size"], 0), pc.equal(table["kv_cache_dtype"], cache))
    )
    table = table.filter(pc.not_equal(table["kernel_source"], STAND_IN))
    return _median_rows(table, columns)


def distil_delta(path: Path) -> Arrays:
    """Return the seconds of the gated delta rule, of decodes by (key heads, value heads, requests) and
    of prompts by (…, tokens).
    """
    import pyarrow.parquet as pq

    columns = ("num_k_heads", "num_v_heads", "batch_size", "seq_len")
    table = pq.read_table(path)
    cells: dict[tuple[Any, ...], list[float]] = {}
    names = ("phase", "kernel_source", *columns)
    for *point, latency in zip(*(table[name].to_pylist() for name in (*names, "latency")), strict=True):
        cells.setdefault(tuple(point), []).append(latency / 1e3)
    sums: dict[tuple[Any, ...], list[float]] = {}
    for (phase, _, *point), times in cells.items():
        sums.setdefault((phase, *point), []).append(float(np.median(times)))
    both = {point: float(sum(times)) for point, times in sums.items() if len(times) == 2}
    decodes = [((k, v, batch), s) for (phase, k, v, batch, _), s in both.items() if phase == "generation"]
    prompts = [
        ((k, v, t), s) for (phase, k, v, batch, t), s in both.items() if phase == "context" and batch == 1
    ]
    return {**_arrays("delta", decodes), **_arrays("delta_prompt", prompts)}


def _cores(module: MeasuredModule, rows: Rows, products: Products, place: int, is_prompt: bool) -> Rows:
    """Return the points without the time of dense products; `place` is the column with the number of
    tokens.
    """
    return [
        (point, max(s - _products_s(module, point[0], point[place], products, is_prompt), LEAST_S))
        for point, s in rows
    ]


def _products_s(
    module: MeasuredModule, heads: int, tokens: int, products: Products, is_prompt: bool
) -> float:
    sizes = products.ms.astype(np.float64).tolist()
    curves = (products.curve(n, k).tolist() for n, k in module.products(heads, is_prompt))
    return sum(log_interp(float(tokens), sizes, curve) for curve in curves)


def _arrays(name: str, rows: Sequence[tuple[tuple[int, ...], float]]) -> Arrays:
    rows = sorted(rows)
    seconds = np.array([s for _, s in rows])
    return {name: np.array([point for point, _ in rows], dtype=np.int64), f"{name}_s": shortened(seconds)}


def module_medians(
    path: Path, model: str, columns: tuple[str, ...], form: str = "bfloat16", cache: str = "bfloat16"
) -> Rows:
    """Return the distinct points of a model's module with products in a format, and their median seconds."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    for name, value in (("model", model), ("kv_cache_dtype", cache), ("gemm_type", form)):
        table = table.filter(pc.equal(table[name], value))
    return _median_rows(table, columns)


def _median_rows(table: Any, columns: tuple[str, ...]) -> Rows:
    cells: dict[tuple[int, ...], list[float]] = {}
    points = zip(*(table[name].to_pylist() for name in columns), strict=True)
    for point, latency in zip(points, table["latency"].to_pylist(), strict=True):
        cells.setdefault(point, []).append(latency / 1e3)
    return [(point, float(np.median(times))) for point, times in sorted(cells.items())]
