"""Fit compact tables to a profile of one model's layer on a GPU that no published table covers.

    python -m tools.distil.profile GPU PROFILE_FOLDER

A profile of the LLMServingSim project (MIT; vLLM 0.19, Llama-3.1-8B, bfloat16, one rank) has the
kernels of one layer in microseconds: `dense.csv.gz`, `per_sequence.csv.gz`, `attention.csv.gz`. Kept
are fits and no measured point:

    products    a(m) + b(m) n k seconds for m tokens, over the five products of the model
    prompts     c + d L + e L^2 for L tokens, from chunks alone and after one as long
    decodes     f + g N + h N C for N requests of C tokens each, f + C i at least

each by least squares of relative errors, which are printed. Same profile, same bytes.
"""

import csv
import gzip
import sys
from pathlib import Path
from typing import Any

import numpy as np

from sundog.sim.cost.calibrated import nonnegative_least_squares
from tools.distil.aiconfigurator import DATA

SHAPES = {
    "qkv_proj": (6144, 4096),
    "o_proj": (4096, 4096),
    "gate_up_proj": (28672, 4096),
    "down_proj": (4096, 14336),
    "lm_head": (128256, 4096),
}
MOST_TOKENS = 131_072
"""Maximum number of tokens of context in a batch of decodes, which is more than fits into the memory of
such a GPU.
"""
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
SIZES = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
TOKENS = (1, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
CONTEXTS = (1, 16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
Floats = np.ndarray[Any, np.dtype[np.float64]]


def distil(gpu: str, profile: Path) -> None:
    """Write the GPU's file."""
    tables: dict[str, Any] = {
        "source": np.array(f"fits to {gpu}, Llama-3.1-8B, vLLM 0.19: profile of LLMServingSim (MIT)")
    }
    for name, (points, seconds) in (
        ("gemm", _products(profile)),
        ("context", _prompts(profile)),
        ("generation", _decodes(profile)),
    ):
        tables[name] = np.array(points, dtype=np.int64)
        tables[f"{name}_s"] = np.array(seconds, dtype=np.float32)
    np.savez_compressed(DATA / f"{gpu}.npz", **tables)


def _rows(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _fit(columns: list[list[float]], seconds: list[float], what: str) -> Floats:
    """Return the coefficients, all at least 0, with the smallest squared relative errors."""
    weighted = np.array(columns) / np.array(seconds)[:, None]
    norms = np.linalg.norm(weighted, axis=0)
    found: Floats = nonnegative_least_squares(weighted / norms, np.ones(len(seconds))) / norms
    errors = np.abs(weighted @ found - 1)
    print(f"{what}: {len(seconds)} points, mean error {errors.mean():.1%}, largest {errors.max():.0%}")
    return found


def _products(profile: Path) -> tuple[list[tuple[int, ...]], list[float]]:
    measured: dict[int, list[tuple[float, float]]] = {}
    for file, count in (("dense", "tokens"), ("per_sequence", "sequences")):
        for row in _rows(profile / f"{file}.csv.gz"):
            if row["layer"] in SHAPES:
                n, k = SHAPES[row["layer"]]
                measured.setdefault(int(row[count]), []).append((n * k, float(row["time_us"]) * 1e-6))
    points: list[tuple[int, ...]] = []
    seconds: list[float] = []
    for m in TOKENS:
        columns = [[1.0, weights] for weights, _ in measured[m]]
        launch_s, weight_s = _fit(columns, [s for _, s in measured[m]], f"products of {m}")
        for n in SIZES:
            for k in SIZES:
                points.append((m, n, k))
                seconds.append(float(launch_s + weight_s * n * k))
    return points, seconds


def _attention(profile: Path) -> list[tuple[int, int, int, int, float]]:
    names = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
    return [
        (*(int(row[name]) for name in names), float(row["time_us"]) * 1e-6)  # type: ignore[misc]
        for row in _rows(profile / "attention.csv.gz")
    ]


def _prompts(profile: Path) -> tuple[list[tuple[int, ...]], list[float]]:
    """Return the prompts of a profile: a chunk after one of the same length counts as the prompt with as
    many pairs.
    """
    lengths, seconds = [], []
    for chunk, before, decodes, _, taken_s in _attention(profile):
        if chunk >= 128 and not decodes and before in (0, chunk):
            pairs = chunk * before + chunk * (chunk + 1) / 2
            lengths.append(float(np.sqrt(2 * pairs)))
            seconds.append(taken_s)
    fit = _fit([[1.0, x, x * x] for x in lengths], seconds, "prompts")
    points: list[tuple[int, ...]] = [(HEADS, KV_HEADS, HEAD_DIM, x) for x in CONTEXTS]
    return points, [float(fit @ [1.0, x, x * x]) for x in CONTEXTS]


def _decodes(profile: Path) -> tuple[list[tuple[int, ...]], list[float]]:
    rows = [row for row in _attention(profile) if row[2] and not row[0]]
    alone = [row for row in rows if row[2] == 1]
    least = _fit([[1.0, row[3]] for row in alone], [row[4] for row in alone], "one decode")
    rows = [row for row in rows if row[2] > 1 and row[2] * row[3] <= MOST_TOKENS]
    fit = _fit([[1.0, row[2], row[2] * row[3]] for row in rows], [row[4] for row in rows], "decodes")
    points: list[tuple[int, ...]] = []
    seconds: list[float] = []
    for batch in BATCHES:
        for context in CONTEXTS:
            points.append((HEADS, KV_HEADS, HEAD_DIM, batch, context - 1))
            together_s = float(fit @ [1.0, batch, batch * context])
            seconds.append(max(together_s if batch > 1 else 0.0, float(least @ [1.0, context])))
    return points, seconds


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m tools.distil.profile GPU PROFILE_FOLDER")
    distil(sys.argv[1], Path(sys.argv[2]))
