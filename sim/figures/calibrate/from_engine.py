"""A cost model from an engine at hand: it is measured over a grid of steps, in rounds, and fitted.

Each shape is measured in every round, so that a disturbance spoils a few samples of all shapes, not all
samples of a few. What disturbs a machine only makes steps longer: where it was busy, the shortest tenth
of a shape's samples counts, and else their median.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from actors.core.records import dataclass
from actors.kernel.clock import now_s
from sim.cost.calibrated import Calibrated, Range, chunk_context_tokens, nonnegative_least_squares
from sim.cost.work import StepWork
from sim.figures.calibrate.prober import Prober, Seen
from sim.figures.calibrate.shapes import Limits, Shape, grid, held_out

Floats = NDArray[np.float64]
QUIET, BUSY = 0.5, 0.1
"""Which quantile of its samples a shape counts as."""
UNREST = 0.15
"""A machine is quiet if shapes' medians exceed their lowest tenths by no more, in the mean."""
BENDS = (16, 64, 512)
"""Tokens at which what another token takes may change: from reading weights to multiplying with them."""
CONTEXT_BENDS = (2048, 8192)
"""Tokens of context at which what another takes may change: keys leave the processor's cache."""
FEWEST_ROUNDS = 3
VISIT_S = 0.05
"""How long a shape is measured in a round, in one step at least."""
MOST_STEPS = 8
"""Of a shape in a round."""
HUBER = 0.05
"""Relative errors beyond it count linearly, not by their square."""


@dataclass(frozen=True, slots=True)
class Point:
    """A shape, its work in the middle of its steps, and what each of them took."""

    shape: Shape
    work: StepWork
    samples_s: tuple[float, ...]

    def seconds(self, quantile: float) -> float:
        return float(np.quantile(self.samples_s, quantile))


@dataclass(frozen=True, slots=True)
class EngineFitted:
    """The model, the sizes it was fitted to, and how far it is off where it was not fitted."""

    model: Calibrated
    measured: Range
    held_out: tuple[tuple[Shape, float], ...]
    """Shapes that were not fitted to, and the relative error of each."""
    num_shapes: int
    num_rounds: int
    unrest: float
    """By how much the median of a shape's samples exceeds their lowest tenth, in the mean."""
    quantile: float
    """Which of its samples a shape counts as."""

    def error(self, quantile: float) -> float:
        """This quantile of the absolute relative errors."""
        return float(np.quantile([abs(error) for _, error in self.held_out], quantile))

    @property
    def worst(self) -> tuple[Shape, float]:
        return max(self.held_out, key=lambda each: abs(each[1]))


async def fit_engine(
    prober: Prober,
    limits: Limits,
    seconds: float,
    seed: int,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> EngineFitted:
    """Measure for about `seconds`, three rounds at least, and fit.

    `on_progress` is told how many shapes have been measured, and of how many it knows.
    """
    fitted, others = grid(limits), held_out(limits, seed)
    shapes = [*fitted, *others]
    seen, num_rounds = await _rounds(prober, shapes, seconds, on_progress)
    points = [_point(shape, each) for shape, each in zip(shapes, seen, strict=True)]
    unrest = float(np.mean([point.seconds(QUIET) / point.seconds(BUSY) - 1 for point in points]))
    quantile = QUIET if unrest <= UNREST else BUSY
    timed = [(point.work, point.seconds(quantile)) for point in points]
    known = points[: len(fitted)]
    model = fit_points(timed[: len(known)])
    errors = tuple(
        (shape, model.step_s(work) / seconds - 1)
        for shape, (work, seconds) in zip(others, timed[len(known) :], strict=True)
    )
    return EngineFitted(model, _range(known), errors, len(known), num_rounds, unrest, quantile)


async def _rounds(
    prober: Prober, shapes: Sequence[Shape], seconds: float, on_progress: Callable[[int, int], None]
) -> tuple[list[list[Seen]], int]:
    """The steps of each shape, and how many rounds were made of all of them."""
    seen: list[list[Seen]] = [[] for _ in shapes]
    for shape in shapes:  # Whatever is made at first use is made.
        await prober.steps(shape, 1)
    begin_s, num_rounds = now_s(), 0
    while num_rounds < FEWEST_ROUNDS or now_s() - begin_s < seconds * num_rounds / (num_rounds + 1):
        for at, shape in enumerate(shapes):
            before_s = min((s for _, s in seen[at]), default=VISIT_S)
            seen[at] += await prober.steps(shape, max(1, min(MOST_STEPS, round(VISIT_S / before_s))))
            done = num_rounds * len(shapes) + at + 1
            on_progress(done, len(shapes) * max(num_rounds + 1, FEWEST_ROUNDS))
        num_rounds += 1
    return seen, num_rounds


def _point(shape: Shape, seen: Sequence[Seen]) -> Point:
    works = sorted((work for work, _ in seen), key=lambda work: work.decode_context_tokens)
    return Point(shape, works[len(works) // 2], tuple(seconds for _, seconds in seen))


def _range(points: Sequence[Point]) -> Range:
    works = [point.work for point in points]
    return Range(
        max(float(work.num_tokens) for work in works),
        max(float(work.decode_context_tokens) for work in works),
        max(float(work.num_decodes) for work in works),
        max(float(work.prefill_pairs) for work in works),
    )


def fit_points(points: Sequence[tuple[StepWork, float]]) -> Calibrated:
    """The coefficients with the least relative errors, of which large ones count little (Huber)."""
    features = np.array([_features(work) for work, _ in points])
    seconds = np.array([seconds for _, seconds in points])
    relative = features / seconds[:, None]
    norms = np.linalg.norm(relative, axis=0)
    norms[norms == 0] = 1.0
    weights = np.ones(len(points))
    for _ in range(10):
        roots = np.sqrt(weights)
        solution = nonnegative_least_squares(roots[:, None] * relative / norms, roots) / norms
        weights = np.minimum(1.0, HUBER / np.maximum(np.abs(relative @ solution - 1), 1e-12))
    step, decode, chunk, read, pair, *slopes = (float(value) for value in solution)
    token, *bent = slopes[: len(BENDS) + 1]
    context, *context_bent = slopes[len(BENDS) + 1 :]
    return Calibrated(
        step,
        token,
        context,
        decode,
        pair,
        chunk,
        read,
        tuple((float(bend), slope) for bend, slope in zip(BENDS, bent, strict=True)),
        tuple((float(bend), slope) for bend, slope in zip(CONTEXT_BENDS, context_bent, strict=True)),
    )


def _features(work: StepWork) -> tuple[float, ...]:
    return (
        1.0,
        float(work.num_decodes),
        float(len(work.chunks)),
        float(chunk_context_tokens(work)),
        float(work.prefill_pairs),
        *_between(work.num_tokens, BENDS),
        *_between(work.decode_context_tokens, CONTEXT_BENDS),
    )


def _between(count: int, bends: Sequence[int]) -> list[float]:
    """How many of `count` lie before the first bend, between neighbours, and beyond the last."""
    edges = (0, *bends, np.inf)
    return [float(max(0.0, min(count, end) - start)) for start, end in pairwise(edges)]
