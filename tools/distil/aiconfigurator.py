"""Distil measured operator tables into the compact ones that Sundog ships.

    pip install aiconfigurator-core
    python -m tools.distil.aiconfigurator [SYSTEMS_FOLDER]

Source: the package aiconfigurator-core (Apache-2.0, NVIDIA), version 0.12.0, its tables of vLLM's
kernels in bfloat16. Kept are dense products, attention without a window on a bfloat16 cache,
graph-captured all-reduces and unquantised experts, routed evenly and by a power law, and in files of
their own dense products in float8, with one scale or with scales of blocks (`blocks.py`), and in nvfp4,
experts given whole to ranks or in fewer bits (`experts.py`), other kinds of attention (`latents.py`), and
attention by heads on a cache of float8; of equal points the median. Milliseconds become float32 seconds.
Same package, same bytes.
"""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from sundog.sim.cost.tables.products import Products
from sundog.sim.cost.work import Coverage
from sundog.sim.hardware.gpu import load_gpu
from tools.distil.blocks import distil_blocks, is_kept
from tools.distil.experts import distil_early, distil_exchange, distil_experts, distil_marlin, shortened
from tools.distil.latents import CACHES, STAND_IN, distil_delta, distil_latents, distil_sparse, distil_windows

DATA = Path(__file__).parents[2] / "sim" / "cost" / "tables" / "data"
SYSTEMS = {
    "a100-80gb": "a100_sxm",
    "b200": "b200_sxm",
    "h100": "h100_sxm",
    "h200": "h200_sxm",
    "l40s": "l40s",
    "rtx-pro-6000": "rtx_pro_6000_server",
}
"""Our GPUs, and the package's folders."""
GEMM = ("m", "n", "k")
CONTEXT = ("num_heads", "num_key_value_heads", "head_dim", "isl")
GENERATION = ("num_heads", "num_key_value_heads", "head_dim", "batch_size", "step")
REDUCE = ("num_gpus", "message_size")
EXPERTS = ("hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "num_tokens")


ROUTED: dict[str, object] = {"moe_dtype": "bfloat16", "moe_ep_size": 1}
CACHE: dict[str, object] = {"kv_cache_dtype": "bfloat16", "window_size": 0}
WANTED: dict[str, tuple[str, str, Sequence[str], dict[str, object]]] = {
    "gemm": ("gemm", "gemm_perf", GEMM, {"gemm_dtype": "bfloat16"}),
    "context": ("attention", "context_attention_perf", CONTEXT, {**CACHE, "batch_size": 1, "step": 0}),
    "generation": ("attention", "generation_attention_perf", GENERATION, CACHE),
    "reduce": ("comm", "custom_allreduce_perf", REDUCE, {"backend": "vllm_graph"}),
    "experts": ("moe", "moe_perf", EXPERTS, {**ROUTED, "distribution": "power_law_1.2"}),
    "balanced": ("moe", "moe_perf", EXPERTS, {**ROUTED, "distribution": "balanced"}),
}
"""For each table its name here, the package's folder and file, the columns that identify a point, and a
filter of rows.
"""
WITH_MARLIN = {"a100-80gb": "moe/sglang/0.5.10/moe_perf.parquet"}
"""Experts by Marlin, in the package's tables of SGLang."""
WITH_EARLY = {"h200": "moe/vllm/0.19.0/moe_perf.parquet"}
"""Experts in float8 blocks by an earlier version of vLLM; there is no such table of an H100."""
WITH_CACHE = ("b200", "h100", "h200")
"""GPUs whose attention on a float8 cache uses kernels of 16 bits: FlashAttention 3 and TensorRT-LLM's."""
EIGHT_BITS: dict[str, object] = {"gemm_dtype": "fp8"}
"""Filter of the products that are stored in the files of eight bits."""


def distil(systems: Path) -> None:
    """Write one file per GPU."""
    for gpu, folder in SYSTEMS.items():
        root = systems / "data" / folder
        tables: dict[str, Any] = {"source": np.array(_source(root))}
        for name, (operator, file, columns, keep) in WANTED.items():
            points, seconds = _medians(_newest(root, operator, file), columns, keep)
            tables[name], tables[f"{name}_s"] = points, seconds
        np.savez_compressed(DATA / f"{gpu}.npz", **tables)
        if gpu in WITH_MARLIN:
            marlin = distil_marlin(root / WITH_MARLIN[gpu], gpu)
            np.savez_compressed(DATA / f"{gpu}-marlin.npz", source=tables["source"], **marlin)
        if gpu in WITH_EARLY:
            early = distil_early(root / WITH_EARLY[gpu], gpu)
            np.savez_compressed(DATA / f"{gpu}-early.npz", source=tables["source"], **early)
        points, seconds = _medians(_newest(root, "gemm", "gemm_perf"), GEMM, EIGHT_BITS)
        if not len(points):
            continue
        np.savez_compressed(DATA / f"{gpu}-fp8.npz", source=tables["source"], gemm=points, gemm_s=seconds)
        products, scales = _newest(root, "gemm", "gemm_perf"), _newest(root, "quantize", "computescale_perf")
        points, blocks_s, ratio, num_measured = distil_blocks(products, scales)
        print(f"{gpu}: {num_measured} of {len(points)} products by blocks measured, {ratio:.2f} of the rule")
        np.savez_compressed(
            DATA / f"{gpu}-block-fp8.npz", source=tables["source"], gemm=points, gemm_s=shortened(blocks_s)
        )
        points, seconds = _medians(products, GEMM, {"gemm_dtype": "nvfp4"})
        if len(points):
            kept = np.array([is_kept(m) for m in points[:, 0].tolist()])
            four = {"gemm": points[kept], "gemm_s": shortened(seconds[kept])}
            np.savez_compressed(DATA / f"{gpu}-nvfp4.npz", source=tables["source"], **four)
        exchange = distil_exchange(_newest(root, "comm", "nccl_perf", "nccl"))
        experts = distil_experts(_newest(root, "moe", "moe_perf"), gpu)
        np.savez_compressed(DATA / f"{gpu}-experts.npz", source=tables["source"], **experts, **exchange)
        _distil_kinds(root, gpu, tables)
        if gpu in WITH_CACHE:
            _distil_cache(root, gpu, tables["source"])


def _distil_cache(root: Path, gpu: str, source: object) -> None:
    """Write attention by heads on a cache of float8, with windows and without."""
    context = _newest(root, "attention", "context_attention_perf")
    found: dict[str, Any] = {"source": source, **distil_windows(context.parent, "fp8")}
    for name in ("context", "generation"):
        _, file, columns, kept = WANTED[name]
        path = context.with_name(f"{file}.parquet")
        points, seconds = _medians(path, columns, {**kept, "kv_cache_dtype": "fp8"}, without=STAND_IN)
        found[name], found[f"{name}_s"] = points, shortened(seconds)
    np.savez_compressed(DATA / f"{gpu}-float8-cache.npz", **found)


def _distil_kinds(root: Path, gpu: str, tables: dict[str, Any]) -> None:
    """Write the other kinds of attention, as far as they were measured."""
    print(gpu)
    products = Products(tables, load_gpu(gpu), Coverage())
    found: dict[str, Any] = {"source": tables["source"]}
    folder = _newest(root, "mla", "mla_context_module_perf").parent
    for cache in CACHES:
        found |= distil_latents(folder, products, cache)
    if (root / "sparse_attention" / "vllm").is_dir():
        folder = _newest(root, "sparse_attention", "dsa_context_module_perf").parent
        for cache in CACHES:
            found |= distil_sparse(folder, products, cache)
    found |= distil_windows(_newest(root, "attention", "context_attention_perf").parent)
    found |= distil_delta(_newest(root, "linear_attention", "gdn_perf"))
    np.savez_compressed(DATA / f"{gpu}-kinds.npz", **found)


def _newest(root: Path, operator: str, file: str, library: str = "vllm") -> Path:
    versions = (root / operator / library).glob(f"*/{file}.parquet")
    return max(versions, key=lambda path: [int(part) for part in path.parent.name.split(".")])


def _source(root: Path) -> str:
    files = [
        _newest(root, operator, file)
        for operator, file in (
            ("gemm", "gemm_perf"),
            ("attention", "generation_attention_perf"),
            ("comm", "custom_allreduce_perf"),
            ("moe", "moe_perf"),
        )
    ]
    versions = ", ".join(f"{f.parts[-4]} vLLM {f.parent.name}" for f in files)
    return f"aiconfigurator-core 0.12.0 (Apache-2.0), {root.name}: {versions}"


def _medians(
    path: Path, columns: Sequence[str], keep: dict[str, object], without: str = ""
) -> tuple["np.ndarray[Any, np.dtype[np.int64]]", "np.ndarray[Any, np.dtype[np.float32]]"]:
    """Return the distinct points in order, and the median seconds of each."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    for name, value in keep.items():
        if name in table.column_names:
            table = table.filter(pc.equal(table[name], value))
    if without:
        table = table.filter(pc.not_equal(table["kernel_source"], without))
    points = np.stack([table[name].to_numpy() for name in columns], axis=1).astype(np.int64)
    distinct, row = np.unique(points, axis=0, return_inverse=True)
    latency = table["latency"].to_numpy() / 1e3
    order = np.lexsort((latency, row.reshape(-1)))
    if not len(points):
        return points, np.zeros(0, dtype=np.float32)
    groups = np.split(latency[order], np.cumsum(np.bincount(row.reshape(-1)))[:-1])
    return distinct, np.array([np.median(group) for group in groups], dtype=np.float32)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        distil(Path(sys.argv[1]))
    else:
        spec = find_spec("aiconfigurator_core")
        if spec is None or spec.origin is None:
            sys.exit("aiconfigurator-core is not installed: pip install aiconfigurator-core")
        distil(Path(spec.origin).parent / "systems")
