"""Print how far predictions are off for measurements that were left out, by family of kernels.

    python -m tools.distil.leave_out [SYSTEMS_FOLDER]

Experts: each measured model is left out with all its splits and priced by the most similar that is left,
and every other number of tokens is priced by its neighbours. The others: every fifth measured shape or point
is left out and priced by its neighbours, of curves every other one. With the folder of the package
(`aiconfigurator.py`), products by blocks also against attention modules of DeepSeek-V3 that were timed in
a graph, of which nothing was used: seconds in 16 bits less seconds by blocks, in shares of the module.
`sim/cost/tables/left_out.py` holds the errors that this printed.
"""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sundog.sim.cost.tables import experts as experts_room
from sundog.sim.cost.tables.experts import measured_experts, slowest_curve
from sundog.sim.cost.tables.interpolate import has_tables, load, log_interp
from sundog.sim.cost.tables.kinds import Surface, kinds_of
from sundog.sim.cost.tables.products import Products
from sundog.sim.cost.work import Coverage
from sundog.sim.hardware.formats import WeightFormat
from sundog.sim.hardware.gpu import known_gpus, load_gpu
from sundog.sim.hardware.quantization import BLOCK_FP8, FP8, MXFP4
from tools.distil.latents import DENSE, module_medians

FORMS = {"16 bits": None, "fp8": FP8, "block fp8": BLOCK_FP8, "mxfp4": MXFP4}
FIFTH = 5


def report(family: str, gpu: str, errors: list[float]) -> None:
    """Print the mean, the median and the ninth decile of absolute errors, and the bias."""
    if errors:
        off = np.array(errors)
        size = np.abs(off)
        print(
            f"{family:18} {gpu:13} {len(off):6} mean {size.mean():6.1%} median {np.median(size):6.1%}"
            f" p90 {np.quantile(size, 0.9):6.1%} bias {off.mean():+6.1%}"
        )


def of_experts(gpu: str, form: str) -> list[float]:
    """Return the errors for each model's experts if no row of that model is used."""
    described, found = load_gpu(gpu), []
    rows = measured_experts(gpu, form)
    for experts, curves in rows.items():
        tokens, seconds = slowest_curve(experts, *curves)
        others = {key: row for key, row in rows.items() if key[:4] != experts[:4] and len(row[0][0]) > 3}
        priced = experts_room.curve_of(others, described, experts, FORMS[form])
        for count, true_s in zip(tokens.tolist(), seconds.tolist(), strict=True):
            found.append(log_interp(count, *(each.tolist() for each in priced)) / true_s - 1)
    return found


def of_tokens(gpu: str, form: str) -> list[float]:
    """Return the errors for every other number of tokens, predicted from the numbers around it."""
    found: list[float] = []
    for experts, curves in measured_experts(gpu, form).items():
        found += _between(*(each.tolist() for each in slowest_curve(experts, *curves)))
    return found


def _between(sizes: list[float], seconds: list[float]) -> Iterator[float]:
    for index in range(1, len(sizes) - 1, 2):
        xs, ys = sizes[:index] + sizes[index + 1 :], seconds[:index] + seconds[index + 1 :]
        yield log_interp(sizes[index], xs, ys) / seconds[index] - 1


def of_products(gpu: str, file: str) -> list[float]:
    """Return the errors for every fifth shape, predicted from its neighbours."""
    tables, found = load(file), []
    described = load_gpu(gpu)
    points = tables["gemm"]
    shapes = sorted(set(map(tuple, points[:, 1:].tolist())))
    inner = [shape for shape in shapes if shapes[0][0] < shape[0] < shapes[-1][0]]
    for left in inner[2::FIFTH]:
        own = (points[:, 1:] == left).all(axis=1)
        rest = {**tables, "gemm": points[~own], "gemm_s": tables["gemm_s"][~own]}
        whole, part = (Products(each, described, Coverage(), _form(file)) for each in (tables, rest))
        # The grid keeps its lines: only the cell is missing, which its neighbours in n stand for.
        n, k = left
        known = sorted({shape[0] for shape in shapes if shape[1] == k and shape[0] != n})
        below, above = (max(m for m in known if m < n), min((m for m in known if m > n), default=0))
        if not above:
            continue
        share = np.log(n / below) / np.log(above / below)
        low, high = part.curve(below, k), part.curve(above, k)
        true = whole.curve(n, k)
        found += (low * (high / low) ** share / true - 1).tolist()
    return found


def _form(file: str) -> WeightFormat | None:
    return next(
        (form for name, form in FORMS.items() if form and file.endswith(name.replace(" ", "-"))), None
    )


def of_decodes(gpu: str, name: str, heads_at: int) -> list[float]:
    """Return the errors for every fifth (batch, context), predicted from the surface of the others."""
    tables, found = kinds_of(gpu), []
    if name not in tables:
        return []
    points, seconds = tables[name], tables[f"{name}_s"].astype(np.float64)
    for head in sorted(set(map(tuple, points[:, :heads_at].tolist()))):
        own = (points[:, :heads_at] == head).all(axis=1)
        at, true = points[own][:, heads_at:], seconds[own]
        inside = (at > at.min(axis=0)).all(axis=1) & (at < at.max(axis=0)).all(axis=1)
        left = inside & (np.arange(len(at)) % FIFTH == 0)
        surface = Surface(name, at[~left], true[~left], Coverage())
        for (batch, context), true_s in zip(at[left].tolist(), true[left].tolist(), strict=True):
            xs, ys = surface.curve(batch)
            found.append(float(np.interp(context, xs, ys)) / true_s - 1)
    return found


def of_columns(gpu: str, file: str, name: str, heads_at: int) -> list[float]:
    """Return the errors for every other inner point of a curve in one size, predicted from the rest."""
    if not has_tables(file) or name not in load(file):
        return []
    tables = load(file)
    found: list[float] = []
    points, seconds = tables[name], tables[f"{name}_s"].astype(np.float64)
    for head in sorted(set(map(tuple, points[:, :heads_at].tolist()))):
        own = (points[:, :heads_at] == head).all(axis=1)
        found += _between(points[own][:, heads_at].astype(np.float64).tolist(), seconds[own].tolist())
    return found


def of_modules(gpu: str, folder: Path) -> Iterator[float]:
    """Yield errors of the time that products by blocks save against 16 bits, as shares of the module's."""
    described, tables = load_gpu(gpu), load(gpu)
    plain = Products(tables, described, Coverage())
    blocks = Products(load(f"{gpu}-block-fp8"), described, Coverage(), BLOCK_FP8)
    path = folder / "mla_generation_module_perf.parquet"
    columns = ("num_heads", "batch_size", "step")
    both = [dict(module_medians(path, DENSE.name, columns, form)) for form in ("bfloat16", "fp8_block")]
    for heads, batch in itertools.product((16, 32, 64, 128), (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024)):
        sixteen_s, blocks_s = (each[heads, batch, 128] for each in both)
        priced = [
            sum(
                log_interp(batch, each.ms.astype(np.float64).tolist(), each.curve(n, k).tolist())
                for n, k in DENSE.products(heads, False)
            )
            for each in (plain, blocks)
        ]
        yield ((priced[1] - priced[0]) - (blocks_s - sixteen_s)) / sixteen_s


def main(systems: Path | None) -> None:
    """Print a line of errors for each family and GPU."""
    for gpu in known_gpus():
        if not has_tables(f"{gpu}-experts"):
            continue
        for form in FORMS:
            report(f"experts {form}", gpu, of_experts(gpu, form))
            report(f"tokens {form}", gpu, of_tokens(gpu, form))
        for form in ("fp8", "block-fp8"):
            report(f"products {form}", gpu, of_products(gpu, f"{gpu}-{form}"))
        report("latent decodes", gpu, of_decodes(gpu, "latent", 1))
        report("latent prompts", gpu, of_columns(gpu, f"{gpu}-kinds", "latent_prompt", 1))
        report("sparse decodes", gpu, of_decodes(gpu, "sparse", 2))
        report("window decodes", gpu, of_decodes(gpu, "window", 4))
        report("window prompts", gpu, of_columns(gpu, f"{gpu}-kinds", "window_prompt", 4))
        report("delta decodes", gpu, of_columns(gpu, f"{gpu}-kinds", "delta", 2))
        report("delta prompts", gpu, of_columns(gpu, f"{gpu}-kinds", "delta_prompt", 2))
        for name in ("gather", "scatter"):
            report(f"exchange {name}", gpu, of_columns(gpu, f"{gpu}-experts", name, 1))
        if systems is not None and gpu in ("h100", "h200", "b200"):
            folder = systems / "data" / f"{gpu}_sxm" / "mla" / "vllm" / "0.24.0"
            report("blocks in modules", gpu, list(of_modules(gpu, folder)))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
