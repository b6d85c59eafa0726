"""Fit of a cost model to a running engine, measured over a grid of steps, in repetitions.

Steps of given shapes are sent to an engine's Executor as its Scheduler would; to one that plans ahead, a
decode step while the previous one runs, and the time between their results counts. The engine itself has
written the keys that a step reads, each request's in blocks of its own: pages that were never written, or
that several requests share, would be read from the processor's cache.

Each shape is measured in every repetition, so that a disturbance spoils a few samples of all shapes, not all
samples of a few. Disturbances only make steps longer: on a busy machine the shortest tenth of a shape's
samples counts, otherwise their median. Shapes outside the grid test the fit.
"""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sundog.actors.core.batch import Admission, Batch, Chunk
from sundog.actors.core.params.sampling import Sampling
from sundog.actors.kernel.actor import Ref, Reply
from sundog.actors.kernel.clock import now_s
from sundog.actors.messages import Capacity, Interrupt, Load, StepResult
from sundog.sim.cost.calibrated import (
    Calibrated,
    ObservedRange,
    chunk_context_tokens,
    errors,
    is_recorded,
    nonnegative_least_squares,
)
from sundog.sim.cost.work import StepWork, WorkFold

CONTEXTS = (16, 128, 512, 1024, 2048, 8192)
CHUNKS = (1, 8, 16, 64, 128, 256, 512, 1024, 2048, 8192)
BEFORE = (0, 256, 1024, 4096)
SEVERAL = ((2, 32), (4, 16), (4, 128), (16, 32))
"""Shapes of several chunks: (chunks, tokens of each)."""
MIXED = ((4, 16), (4, 512), (16, 128), (16, 1024), (64, 64), (64, 512))
"""Shapes of a chunk with decodes: (decodes, tokens of the chunk)."""
MIXED_CONTEXT = 256
NUM_HELD_OUT, TRIES = 24, 500


class Shape(NamedTuple):
    """Step: the context of each decode, including its new token; (new, computed before) of each chunk."""

    contexts: tuple[int, ...] = ()
    chunks: tuple[tuple[int, int], ...] = ()

    @property
    def num_tokens(self) -> int:
        """Number of tokens that it computes."""
        return len(self.contexts) + sum(new for new, _ in self.chunks)

    def __str__(self) -> str:
        parts = [f"{new} after {before}" for new, before in self.chunks]
        if self.contexts:
            mean = sum(self.contexts) / len(self.contexts)
            parts.insert(0, f"{len(self.contexts)} decodes at {mean:.0f}")
        return " + ".join(parts)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of an engine's step: requests, tokens, context, and blocks in all."""

    num_seqs: int
    num_tokens: int
    context: int
    num_blocks: int
    block_size: int

    def allow(self, shape: Shape) -> bool:
        """Return whether the engine can execute this shape."""
        held = (*shape.contexts, *(new + before for new, before in shape.chunks))
        return (
            len(held) <= self.num_seqs
            and shape.num_tokens <= self.num_tokens
            and max(held) <= self.context
            and sum(tokens // self.block_size + 1 for tokens in held) <= self.num_blocks
        )


def grid(limits: Limits) -> list[Shape]:
    """Return decodes by number and context, chunks by size and context, several chunks, and both together."""
    nums, num = [], 1
    while num < limits.num_seqs:
        nums.append(num)
        num *= 2
    contexts = [*(c for c in CONTEXTS if c < limits.context), limits.context]
    largest = min(limits.num_tokens, limits.context)
    sizes = [*(n for n in CHUNKS if n < largest), largest]
    shapes = [Shape((context,) * num) for num in (*nums, limits.num_seqs) for context in contexts]
    shapes += [Shape((), ((new, before),)) for new in sizes for before in BEFORE]
    shapes += [Shape((), ((new, 0),) * num) for num, new in (*SEVERAL, (2, limits.num_tokens // 2))]
    shapes += [Shape((MIXED_CONTEXT,) * num, ((new, 0),)) for num, new in MIXED]
    return [shape for shape in shapes if limits.allow(shape)]


def held_out(limits: Limits, seed: int) -> list[Shape]:
    """Return random shapes, of sizes that the grid lacks."""
    rng, shapes = random.Random(seed), list[Shape]()
    for _ in range(TRIES):
        kind = rng.choice(("decodes", "chunk", "both"))
        num = 0 if kind == "chunk" else round(limits.num_seqs ** rng.random())
        new = round(limits.num_tokens ** rng.uniform(0.2, 1.0))
        longest = round(limits.context ** rng.uniform(0.4, 1.0))
        contexts = tuple(rng.randint(3, max(3, longest)) for _ in range(num))
        before = rng.choice((0, rng.randint(0, limits.context)))
        shape = Shape(contexts, () if kind == "decodes" else ((new, before),))
        if limits.allow(shape):
            shapes.append(shape)
    return shapes[:NUM_HELD_OUT]


GREEDY = Sampling(temperature=0.0)
NUM_TOKEN_IDS = 4096
Seen = tuple[StepWork, float]
"""Work of a step, and the seconds from its request to its result."""


class Prober:
    """Executor of steps, one at a time; the requests of a shape end when the next shape begins."""

    def __init__(
        self,
        executor: Ref[Batch | Interrupt | Load],
        capacity: Capacity,
        vocab_size: int,
        seed: int,
        is_ahead: bool = False,
    ) -> None:
        self._is_ahead = is_ahead
        self._executor, self._block_size = executor, capacity.block_size
        self._fold = WorkFold()
        self._names, self._step = itertools.count(), itertools.count()
        rng = random.Random(seed)
        self._token_ids = [rng.randrange(vocab_size) for _ in range(NUM_TOKEN_IDS)]
        self._next_block = 1
        self._ending: tuple[str, ...] = ()
        self._num_decodes = 0

    async def write(self, least: int, most: int, chunk_tokens: int, longest: int, seconds: float) -> int:
        """Write the first blocks, by prompts of up to `longest` tokens in chunks; return their number.

        Writes at least `least` tokens, and goes on up to `most` until `seconds` have passed.
        """
        self._next_block, end_s = 1, now_s() + seconds
        while self._next_block <= (most if now_s() < end_s else least):
            num_tokens = min(longest, (most - self._next_block + 1) * self._block_size)
            admitted = [self._admission(num_tokens, 0)]
            for before in range(0, num_tokens, chunk_tokens):
                new = min(chunk_tokens, num_tokens - before)
                chunk = Chunk(admitted[0].request_id, new, before + new == num_tokens)
                await self._ask(admitted if before == 0 else [], [chunk])
        return self._next_block - 1

    async def steps(self, shape: Shape, num_steps: int) -> list[Seen]:
        """Measure `num_steps` steps of the shape; contexts of decodes grow by a token a step.

        With chunks, each step has new ones, whose requests end with it.
        """
        self._next_block = 1
        # The last known token is computed, one is sampled, and from the next step on they decode.
        is_ahead = self._is_ahead and not shape.chunks
        num_more = num_steps + is_ahead
        decodes = [self._admission(context - 1, context - 2, num_more) for context in shape.contexts]
        still: tuple[str, ...] = ()
        if decodes:
            await self._ask(decodes, [Chunk(each.request_id, 1, True) for each in decodes])
            still, self._ending = self._ending, ()
        behind, seen = self._next_block, []
        if is_ahead:
            seen = await self._ask_ahead(num_steps)
        for _ in range(0 if is_ahead else num_steps):
            self._next_block = behind
            added = [self._admission(before + new, before) for new, before in shape.chunks]
            chunks = [
                Chunk(each.request_id, new, True) for each, (new, _) in zip(added, shape.chunks, strict=True)
            ]
            seen.append(await self._ask(added, chunks))
        self._ending += still
        return seen

    async def _ask_ahead(self, num_steps: int) -> list[Seen]:
        """Run decode steps, each requested before the previous one has ended; the first one only fills the
        device.
        """
        works, ends_s = list[StepWork](), list[float]()
        _, before = self._request([], [])
        for _ in range(num_steps):
            work, reply = self._request([], [])
            works.append(work)
            self._refuse_failed(await before)
            ends_s.append(now_s())
            before = reply
        self._refuse_failed(await before)
        ends_s.append(now_s())
        return [(work, end - begin) for work, (begin, end) in zip(works, pairwise(ends_s), strict=True)]

    async def _ask(self, admitted: list[Admission], chunks: list[Chunk]) -> Seen:
        begin_s = now_s()
        work, reply = self._request(admitted, chunks)
        self._refuse_failed(await reply)
        return work, now_s() - begin_s

    def _request(self, admitted: list[Admission], chunks: list[Chunk]) -> tuple[StepWork, Reply[StepResult]]:
        finished = self._ending
        joining = tuple(chunk.request_id for chunk in chunks if chunk.samples)
        self._num_decodes -= len(finished)
        batch = Batch(
            next(self._step),
            admitted=tuple(admitted),
            chunks=tuple(chunks),
            finished=finished,
            num_decodes=self._num_decodes,
        )
        work = self._fold.begin(batch)
        self._fold.advance(1)
        self._ending = joining
        self._num_decodes += len(joining)
        return work, self._executor.request(batch)

    def _refuse_failed(self, result: StepResult) -> None:
        if result.failed:
            raise RuntimeError(f"step {result.step}: {result.failed[0][1]}")

    def _admission(self, num_tokens: int, num_computed: int, num_more: int = 0) -> Admission:
        num_blocks = -(-(num_tokens + num_more) // self._block_size)
        blocks = tuple(range(self._next_block, self._next_block + num_blocks))
        self._next_block += num_blocks
        tokens = (self._token_ids * (num_tokens // NUM_TOKEN_IDS + 1))[:num_tokens]
        name = f"probe-{next(self._names)}"
        return Admission(
            name,
            num_tokens,
            num_prompt_tokens=num_tokens,
            num_computed_tokens=num_computed,
            block_ids=blocks,
            token_ids=tuple(tokens),
            sampling=GREEDY,
        )


Floats = NDArray[np.float64]
QUIET, BUSY = 0.5, 0.1
"""Quantile of a shape's samples to use, on a quiet and on a busy machine."""
UNREST = 0.15
"""Largest mean excess of shapes' medians over their lowest tenths on a quiet machine."""
BENDS = (16, 64, 512)
"""Numbers of tokens at which the cost of a token may change, from reading weights to multiplying."""
CONTEXT_BENDS = (2048, 8192)
"""Numbers of context tokens at which the cost may change: keys leave the processor's cache."""
FEWEST_ROUNDS = 3
VISIT_S = 0.05
"""Seconds for which a shape is measured per repetition, in at least one step."""
MOST_STEPS = 8
"""Most steps of a shape per repetition."""
HUBER = 0.05
"""Huber's threshold: larger relative errors count linearly, not by their square."""
ABOVE, WIDEST = 1.1, 1.5
"""Ratio to the floor from which a step with chunks counts as longer, and the largest ratio that decodes
beside them may explain.
"""
NOTHING = Calibrated(0.0, 0.0, per_context_token=0.0, per_decode=0.0, per_prefill_pair=0.0)
MUCH_BETTER = 0.7
"""A floor is used only if this share of the loss, or less, remains with it: a CPU has no floor."""


@dataclass(frozen=True, slots=True)
class Point:
    """Shape, its work in the middle step of those measured, and their durations."""

    shape: Shape
    work: StepWork
    samples_s: tuple[float, ...]

    def seconds(self, quantile: float) -> float:
        return float(np.quantile(self.samples_s, quantile))


@dataclass(frozen=True, slots=True)
class EngineFitted:
    """Fitted model, its range of sizes, and its errors on shapes not fitted."""

    model: Calibrated
    measured: ObservedRange
    held_out: tuple[tuple[Shape, float], ...]
    """Shapes that were not fitted, with the relative error of each."""
    num_shapes: int
    num_rounds: int
    unrest: float
    """Mean excess of the median of a shape's samples over their lowest tenth."""
    quantile: float
    """Quantile of a shape's samples that was used."""

    def error(self, quantile: float) -> float:
        """Return this quantile of the absolute relative errors."""
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
    """Measure for about `seconds`, at least three repetitions, and fit.

    `on_progress` is called with the number of measured shapes and the total.
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
    return EngineFitted(
        model,
        _range(known),
        held_out=errors,
        num_shapes=len(known),
        num_rounds=num_rounds,
        unrest=unrest,
        quantile=quantile,
    )


async def _rounds(
    prober: Prober, shapes: Sequence[Shape], seconds: float, on_progress: Callable[[int, int], None]
) -> tuple[list[list[Seen]], int]:
    seen: list[list[Seen]] = [[] for _ in shapes]
    for shape in shapes:  # Whatever is made at first use is made.
        await prober.steps(shape, 1)
    on_progress(0, len(shapes) * FEWEST_ROUNDS)
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


def _range(points: Sequence[Point]) -> ObservedRange:
    works = [point.work for point in points]
    return ObservedRange(
        max(float(work.num_tokens) for work in works),
        max(float(work.decode_context_tokens) for work in works),
        max(float(work.num_decodes) for work in works),
        max(float(work.prefill_pairs) for work in works),
    )


def fit_points(points: Sequence[tuple[StepWork, float]]) -> Calibrated:
    """Fit coefficients by relative errors, with little weight on large ones (Huber).

    For steps with chunks each measured time is tried as a floor, and kept if it explains the times much
    better.
    """
    best = _linear(points)
    least = MUCH_BETTER * _loss(best, points)
    launched = [(work, seconds) for work, seconds in points if not is_recorded(work)]
    for floor in sorted({seconds for _, seconds in launched}):
        mixed = [seconds for work, seconds in launched if work.num_decodes and seconds <= floor * WIDEST]
        low = replace(NOTHING, chunked_floor=floor, mixed_floor=float(np.median(mixed or [floor])))
        above = [each for each in points if each[1] > low.floor_s(each[0]) * ABOVE]
        model = _linear(above)
        model = replace(model, chunked_floor=low.chunked_floor, mixed_floor=low.mixed_floor)
        if (loss := _loss(model, points)) < least:
            best, least = model, loss
    return best


def _loss(model: Calibrated, points: Sequence[tuple[StepWork, float]]) -> float:
    off = np.abs(errors(model, points))
    return float(np.where(off <= HUBER, off**2 / 2, HUBER * (off - HUBER / 2)).sum())


def _linear(points: Sequence[tuple[StepWork, float]]) -> Calibrated:
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
        step=step,
        per_token=token,
        per_context_token=context,
        per_decode=decode,
        per_prefill_pair=pair,
        per_chunk=chunk,
        per_chunk_context_token=read,
        bends=tuple((float(bend), slope) for bend, slope in zip(BENDS, bent, strict=True)),
        context_bends=tuple(
            (float(bend), slope) for bend, slope in zip(CONTEXT_BENDS, context_bent, strict=True)
        ),
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
    edges = (0, *bends, np.inf)
    return [float(max(0.0, min(count, end) - start)) for start, end in pairwise(edges)]
