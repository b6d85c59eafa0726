"""Measured experts of a layer, split over ranks or whole on ranks.

Tables have two ways to route: balanced, every expert in turn, and by a power law of exponent 1.2. With few
tokens balanced routing reaches more experts than real tokens do, which are alike; with many the power law
loads a few experts more than a trained router does, and its table rises and falls with the random sample (32
layers of 4,096 x 14,336 on two H100: 15.7 ms for 16 tokens, 22.1 for 80, 19.1 for 96). Each bounds the truth
from above where it is wrong, so the lower of the two counts, each made to rise first. That depends on the
shapes of the tables: small experts follow the power law up to some hundred tokens, Mixtral's are balanced
from eight on.

If ranks have whole experts, all wait for the rank with the most tokens. The power law's rows are those of
that rank; a balanced row stands for it at a number of tokens multiplied by its larger share
(`largest_share`).

Experts in float8 blocks on Hopper were measured with two versions of vLLM. Until 0.19 Triton multiplies them;
0.24 multiplies whole ones with FlashInfer, which takes 0.6 to 0.8 of that for few tokens and 0.2 to 0.5 for
thousands, and has other tiles for DeepSeek-V3's split ones. The earlier table is of an H200; an H100 takes
the same ratio of both versions (`early_curves`). Others that are split have one kernel in both.

On an A100 experts in mxfp4 are those in integers of 4 bits by the same kernel, Marlin.
"""

import math
from typing import Any, Final, NamedTuple

import numpy as np

from sundog.actors.core.engine_version import NEWEST, parse_version
from sundog.sim.cost.tables.interpolate import Floats, Points, has_tables, load, log_interp, rising
from sundog.sim.cost.work import Coverage
from sundog.sim.hardware.formats import WeightFormat
from sundog.sim.hardware.gpu import Gpu

SIXTEEN_BITS: Final = "16 bits"
EARLY_UNTIL: Final = (0, 19)
"""Last version of vLLM for which the earlier table of experts in float8 blocks counts."""
EARLY_GPUS: Final = {"h200": "h200", "h100": "h200"}
"""GPUs with such a table, and the GPU on which it was measured."""
SAME_BYTES: Final = {"fp8": "block fp8", "block fp8": "fp8"}
"""Format used for another of as many bytes, if experts were measured in only one of them."""
POPULARITY: Final = 1.5
"""Standard deviation of the tokens per expert of a layer, relative to the mean. It belongs to a log-uniform
popularity over a range of 1 to 800, the package's power law of exponent 1.01 for 1,024 tokens. With it the
fullest of 8 ranks of 256 experts gets 1.38 times the mean, of 64 ranks 2.8 times; training and prefill of
models of 106B to 671B, without balancing, show 1.3 to 4.0 (UltraEP, arXiv 2606.04101, abstract).
"""
LATEST: Final = (0.0, 0.564, 1.029, 1.424, 1.766, 2.070, 2.344)
"""Distance of the largest rank above the mean, by the logarithm of the number of ranks, in standard
deviations (normal variables).
"""
GEMM_SHARE, BANDWIDTH_SHARE = 0.6, 0.85
"""Shares of the peaks that products reach; only ratios of two shapes' rooflines are used."""


class ExpertsOnRank(NamedTuple):
    """Experts of `hidden` x `inner`: each over `split` ranks, all over `whole` groups of such ranks."""

    hidden: int
    inner: int
    per_token: int
    num_experts: int
    split: int
    whole: int

    @property
    def num_own(self) -> float:
        """Number of experts of which a rank has a part."""
        return self.num_experts / self.whole

    @property
    def weights(self) -> float:
        """Number of a rank's weights of one expert."""
        return 3 * self.hidden * self.inner / self.split

    def unlike(self, other: "ExpertsOnRank") -> float:
        """Return how different the other's kernels are: by size and number of experts and by their tokens."""
        ratios: tuple[float, ...] = (
            self.weights / other.weights,
            self.num_own / other.num_own,
            self.per_token / self.num_experts / (other.per_token / other.num_experts),
        )
        thin = abs(math.log(self.inner / self.split / (other.inner / other.split)))
        other_kernel = float((self.whole > 1) != (other.whole > 1))
        return sum(abs(math.log(ratio)) for ratio in ratios) + 0.3 * thin + other_kernel

    def roofline_s(self, num_tokens: float, gpu: Gpu, units: str, weight_bytes: float) -> float:
        """Return the least seconds of arithmetic and reading weights, for tokens that choose at random."""
        pairs = num_tokens * self.per_token / self.whole
        missed: float = (1 - self.per_token / self.num_experts) ** num_tokens
        met = self.num_own * (1 - missed)
        compute_s = 2 * pairs * self.weights / (gpu.peak(units) * GEMM_SHARE)
        read_s = met * self.weights * weight_bytes / (gpu.memory_bandwidth_bytes_per_s * BANDWIDTH_SHARE)
        return max(compute_s, read_s)


def largest_share(experts: ExpertsOnRank, num_tokens: float) -> float:
    """Return the tokens of the fullest group relative to the mean: experts differ, and so do tokens."""
    pairs = max(num_tokens * experts.per_token / experts.whole, 1.0)
    deviation = math.sqrt(POPULARITY**2 / experts.num_own + 1 / pairs)
    latest = float(np.interp(math.log2(experts.whole), range(len(LATEST)), LATEST))
    return float(min(1 + latest * deviation, experts.whole))


class ExpertTables:
    """Experts of a layer: `seconds` for a number of tokens of all ranks.

    Experts that were not measured use the most similar ones (`ExpertsOnRank.unlike`), at the same number of
    tokens per expert; the time beyond the format's shortest is scaled by the ratio of both rooflines, and the
    whole is made to rise. `left_out.py` has the error of this for models that were left out.
    """

    def __init__(
        self,
        name: str,
        gpu: Gpu,
        experts: ExpertsOnRank,
        form: WeightFormat | None,
        coverage: Coverage,
        version: str = NEWEST,
    ) -> None:
        rows = measured_experts(name, SIXTEEN_BITS if form is None else form.name, version)
        self.own, self.like = experts, most_alike(rows, experts)
        in_mxfp4 = form is not None and form.name == "mxfp4"
        by_marlin = in_mxfp4 and has_tables(f"{name}-marlin")
        alike = "marlin alike" if by_marlin else "mxfp4 alike" if in_mxfp4 else "experts alike"
        self.family = "experts" if self.like == experts else alike
        self.times_choice = in_mxfp4 and not by_marlin
        """Whether the choice of a token's experts was timed with them."""
        tokens, seconds = curve_of(rows, gpu, experts, form)
        self._tokens: list[float] = tokens.tolist()
        self._seconds: list[float] = seconds.tolist()
        self._coverage = coverage
        coverage.note("expert size", experts.weights / self.like.weights, 1.0, 1.0)

    def seconds(self, num_tokens: int) -> float:
        """Return the seconds of one layer's experts."""
        self._coverage.note("experts", num_tokens, self._tokens[0], self._tokens[-1])
        return log_interp(num_tokens, self._tokens, self._seconds)


Curve = tuple[Floats, Floats]
Rows = dict[ExpertsOnRank, tuple[Curve, Curve]]


def most_alike(rows: Rows, experts: ExpertsOnRank) -> ExpertsOnRank:
    """Return the most similar measured experts."""
    return min(rows, key=lambda row: (experts.unlike(row), row))


def curve_of(rows: Rows, gpu: Gpu, experts: ExpertsOnRank, form: WeightFormat | None) -> Curve:
    """Return tokens, and seconds of the slowest rank, from these measured rows."""
    like = most_alike(rows, experts)
    tokens, seconds = slowest_curve(like, *rows[like])
    if like == experts:
        return tokens, seconds
    times = (curve[1] for curves in rows.values() for curve in curves if len(curve[1]))
    floor_s = min(float(each.min()) for each in times)
    units = "bfloat16" if form is None or form.units is None else form.units
    weight_bytes = 2.0 if form is None else form.bits / 8
    own: Floats = tokens * (like.per_token / like.num_experts) / (experts.per_token / experts.num_experts)
    ratios = [
        experts.roofline_s(mine, gpu, units, weight_bytes) / like.roofline_s(theirs, gpu, units, weight_bytes)
        for mine, theirs in zip(own.tolist(), tokens.tolist(), strict=True)
    ]
    return own, rising(floor_s + np.maximum(seconds - floor_s, 0.0) * np.array(ratios))


NO_POINTS = np.zeros((0, 6), dtype=np.int64)


def slowest_curve(experts: ExpertsOnRank, skewed: Curve, balanced: Curve) -> Curve:
    """Return tokens, and seconds of the slowest rank, made to rise."""
    tokens, seconds = skewed[0], rising(skewed[1]) if len(skewed[1]) else skewed[1]
    if not len(balanced[0]):
        return tokens, seconds
    others = rising(balanced[1])
    if experts.whole == 1:
        return tokens, np.minimum(seconds, np.interp(tokens, balanced[0], others))
    knots, values = balanced[0].tolist(), others.tolist()
    fullest = [log_interp(each * largest_share(experts, each), knots, values) for each in tokens.tolist()]
    return tokens, rising(np.minimum(seconds, np.array(fullest)))


def has_experts_in(name: str, form: WeightFormat | None) -> bool:
    """Return whether experts in that format were measured on the GPU of this name."""
    return bool(measured_experts(name, SIXTEEN_BITS if form is None else form.name))


def measured_experts(name: str, form: str, version: str = NEWEST) -> Rows:
    """Return, by experts, the skewed and the balanced curve (tokens, seconds) as measured in a format."""
    rows = _rows(name, form)
    rows = rows or (_rows(name, SAME_BYTES[form]) if form in SAME_BYTES else {})
    if form in EARLY_FORMATS and name in EARLY_GPUS and parse_version(version) <= EARLY_UNTIL:
        return rows | early_curves(name, rows)
    return rows


EARLY_FORMATS: Final = ("block fp8", "fp8")


def early_curves(name: str, rows: Rows) -> Rows:
    """Return the rows that were measured with the earlier version, scaled to this GPU."""
    measured = EARLY_GPUS[name]
    early = _rows_in(f"{measured}-early", "block fp8")
    if measured == name:
        return early
    found: Rows = {}
    late = _rows_in(f"{measured}-experts", "block fp8")
    for key in sorted(early.keys() & late.keys() & rows.keys()):
        own, was, now = rows[key], early[key], late[key]
        found[key] = _scaled(own[0], was[0], now[0]), _scaled(own[1], was[1], now[1])
    return found


def _scaled(own: Curve, was: Curve, now: Curve) -> Curve:
    """Return `own` times the ratio of two versions' curves at as many tokens."""
    if not (len(own[0]) and len(was[0]) and len(now[0])):
        return own
    ratio: Floats = np.interp(own[0], *was) / np.interp(own[0], *now)
    return own[0], own[1] * ratio


def _rows(name: str, form: str) -> Rows:
    rows: Rows = {}
    if form == SIXTEEN_BITS:
        tables = load(name)
        points: Points = tables.get("experts", NO_POINTS)
        for hidden, inner, per_token, num, split in sorted({tuple(row) for row in points[:, :5].tolist()}):
            key = hidden, inner, per_token, num, split
            curves = _curve(tables, "experts", key), _curve(tables, "balanced", key)
            rows[ExpertsOnRank(*key, 1)] = curves
    for file in (f"{name}-experts", f"{name}-marlin"):
        if has_tables(file):
            rows |= _rows_in(file, form)
    return rows


def _rows_in(file: str, form: str) -> Rows:
    rows: Rows = {}
    tables = load(file)
    tokens = tables["tokens"].astype(np.float64)
    for index in np.flatnonzero(tables["formats"] == form).tolist():
        sizes = ExpertsOnRank(*map(int, tables["shapes"][index]))
        both = (tables[part][index].astype(np.float64) for part in ("skewed", "balanced"))
        skewed, balanced = ((tokens[~np.isnan(each)], each[~np.isnan(each)]) for each in both)
        if len(skewed[0]):
            rows[sizes] = skewed, balanced
    return rows


def _curve(tables: dict[str, Any], part: str, key: tuple[int, ...]) -> Curve:
    points: Points = tables.get(part, NO_POINTS)
    own = (points[:, :5] == key).all(axis=1)
    seconds: Floats = tables.get(f"{part}_s", np.zeros(0))[own].astype(np.float64)
    return points[own][:, 5].astype(np.float64), seconds
