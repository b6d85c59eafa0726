"""Distil the times of experts and of their exchange between ranks, by format and by split.

Kept are rows of routed experts (`moe_perf`) in 16 bits given whole to ranks, in float8 and in 4 bits however
they are split, routed evenly and by a power law of exponent 1.2, and NCCL's all-gather and reduce-scatter. A
row has one time per number of tokens of all ranks; NaN where nothing was measured. Experts of 16 bits split
over ranks stand in the GPU's own file.

Left out are DeepSeek-V3's experts given whole to ranks: its router chooses groups of experts first, and what
the package calls balanced sends all tokens to the rank that is measured (8,192 tokens take 5.9 ms on one of 8
ranks of H200, and 4.7 on one of 64). Left out too are experts in float8 with one scale on Hopper, of a kernel
of ModelOpt's that nobody tuned: it takes 3 times as long as 16 bits and 4.5 times as long as scales of
blocks, where Triton's kernels take the same for both formats on an L40S.

On an A100 vLLM multiplies experts in mxfp4 by Marlin, which unpacks weights of 4 bits and multiplies in 16.
The package has Marlin there with integers of 4 bits only, in SGLang's copy of vLLM's kernel
(`distil_marlin`): the same loads, products and, but for 4.13 instead of 4.25 bits a weight, bytes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

SOURCE = {
    "bfloat16": "16 bits",
    "fp8": "fp8",
    "fp8_block": "block fp8",
    "w4a16_mxfp4": "mxfp4",
    "nvfp4": "nvfp4",
}
"""The package's formats, and our names for them."""
SHAPE = ("hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
UNTUNED = "vllm_modeloptfp8moe_flashinfer_cutlass_flashinferexperts"
HOPPER = ("h100", "h200")
GROUPED = (7168, 2048, 8, 256)
MOST_SPLIT, MOST_WHOLE = 16, 64
EARLY = {"fp8_block": "block fp8"}
"""Format whose kernels changed: until vLLM 0.19 Triton's, since then FlashInfer's for whole experts."""
MARLIN = {"int4_wo": "mxfp4"}
"""Format measured by Marlin that stands for another of as many bits."""
ROUTINGS = {"balanced": "balanced", "skewed": "power_law_1.2"}
Arrays = dict[str, Any]


def distil_early(path: Path, gpu: str) -> Arrays:
    """Return the experts in float8 blocks that an earlier version of vLLM multiplied in another way.

    Those are whole ones, by another kernel, and DeepSeek-V3's, by other tiles. Others that are split over
    ranks are multiplied by the same kernel in both.
    """
    arrays = distil_experts(path, gpu, EARLY)
    shapes = arrays["shapes"]
    return _chosen(arrays, (shapes[:, 5] > 1) | (shapes[:, :4] == GROUPED).all(axis=1))


def distil_marlin(path: Path, gpu: str) -> Arrays:
    """Return the experts, split over ranks, that Marlin multiplied with integers of 4 bits, as in mxfp4."""
    arrays = distil_experts(path, gpu, MARLIN)
    return _chosen(arrays, arrays["shapes"][:, 5] == 1)


def _chosen(arrays: Arrays, keep: "np.ndarray[Any, Any]") -> Arrays:
    return {**arrays, **{name: arrays[name][keep] for name in ("formats", "shapes", *ROUTINGS)}}


def distil_experts(path: Path, gpu: str, source: Mapping[str, str] = SOURCE) -> Arrays:
    """Return the `formats` of rows, their `shapes`, `tokens`, and the `balanced` and `skewed` seconds."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    forms = table["moe_dtype"].to_numpy(zero_copy_only=False)
    routed = table["distribution"].to_numpy(zero_copy_only=False)
    shapes = np.stack([table[name].to_numpy() for name in SHAPE], axis=1).astype(np.int64)
    counts, seconds = table["num_tokens"].to_numpy(), table["latency"].to_numpy() / 1e3
    split, whole = shapes[:, 4], shapes[:, 5]
    keep = np.isin(forms, list(source)) & np.isin(routed, list(ROUTINGS.values()))
    keep &= (split <= MOST_SPLIT) & (whole <= MOST_WHOLE) & ((whole > 1) | (forms != "bfloat16"))
    if gpu in HOPPER:
        keep &= table["kernel_source"].to_numpy(zero_copy_only=False) != UNTUNED
    keep &= ~((shapes[:, :4] == GROUPED).all(axis=1) & (whole > 1))
    rows = sorted(
        {(source[form], *shape) for form, shape in zip(forms[keep], map(tuple, shapes[keep]), strict=True)}
    )
    place = {row: index for index, row in enumerate(rows)}
    tokens = np.unique(counts[keep])
    arrays: Arrays = {
        "formats": np.array([row[0] for row in rows]),
        "shapes": np.array([row[1:] for row in rows], dtype=np.int64),
        "tokens": tokens,
    }
    for name, routing in ROUTINGS.items():
        times = np.full((len(rows), len(tokens)), np.nan)
        for index in np.flatnonzero(keep & (routed == routing)):
            row = place[source[forms[index]], *shapes[index].tolist()]
            times[row, np.searchsorted(tokens, counts[index])] = seconds[index]
        arrays[name] = shortened(times)
    return arrays


def distil_exchange(path: Path) -> Arrays:
    """Return the points (GPUs, elements of 16 bits of all ranks) and seconds of both collectives."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    kinds = table["op_name"].to_numpy(zero_copy_only=False)
    halves = table["nccl_dtype"].to_numpy(zero_copy_only=False) == "half"
    points = np.stack([table["num_gpus"].to_numpy(), table["message_size"].to_numpy()], axis=1)
    arrays: Arrays = {}
    for name, kind in (("gather", "all_gather"), ("scatter", "reduce_scatter")):
        own = halves & (kinds == kind)
        order = np.lexsort((points[own][:, 1], points[own][:, 0]))
        arrays[name] = points[own][order].astype(np.int64)
        arrays[f"{name}_s"] = shortened(table["latency"].to_numpy()[own][order] / 1e3)
    return arrays


def shortened(seconds: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """Return the seconds as float32 with 10 bits of the fraction: within 0.05 %, in half the space."""
    bits = seconds.astype(np.float32).view(np.uint32)
    out: np.ndarray[Any, Any] = ((bits + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isnan(seconds), np.float32(np.nan), out).astype(np.float32)
