"""Errors of predictions: of each load, of groups and families of loads, by load, and of ranges.

A family is a model on some GPUs. Its errors at light and heavy load must be alike: an error that grows with
load means that part of a step is priced wrongly. Ranges are tested on servers left out: they are scaled until
`TARGET` of all other servers' figures lie within, and then compared with those left out.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sundog.sim.validation.measured import THROUGHPUT, MeasuredServer, Stage
from sundog.sim.validation.predict import Prediction

SHOWN = ("ttft mean", "tpot mean", "e2e mean", "ttft p99", THROUGHPUT)
MEANS = SHOWN[:3]
ACHIEVED = 0.9
"""Share of the arrivals below which a server counts as beyond its knee."""
HELD_OUT = "below the knee, held out"
FITTED = "below the knee, fitted"
BEYOND = "near and beyond the knee"
GAVE_UP = "clients gave up (not counted)"
GROUPS = (HELD_OUT, FITTED, BEYOND, GAVE_UP)
TARGET = 0.9
"""Share of other servers' figures within the ranges that a left-out one is compared with."""
COMPARED = 0.8
"""Share of the knee up to which loads of a family are compared."""


class ValidationRow(NamedTuple):
    """Stage of a server with its prediction."""

    server: MeasuredServer
    stage: Stage
    prediction: Prediction

    def error(self, name: str) -> float | None:
        """Return predicted over real, less 1; None if it was not measured."""
        real, predicted = self.stage.figures.get(name), self.prediction.figures.get(name)
        return None if real is None or predicted is None else predicted / real - 1

    @property
    def family(self) -> str:
        """Model, GPU and ranks."""
        ranks = self.server.tensor_parallel_size
        model = self.server.model.rpartition("/")[2]
        return f"{model} on {f'{ranks} ' if ranks > 1 else ''}{self.server.gpu}"

    @property
    def group(self) -> str:
        """Group in which this row's errors are averaged."""
        if self.stage.num_gave_up:
            return GAVE_UP
        if self.prediction.is_beyond_knee:
            return BEYOND
        return FITTED if self.stage.fitted else HELD_OUT

    @property
    def is_regime_right(self) -> bool | None:
        """Whether the queue was predicted to grow exactly if it did.

        None if throughput was not measured, or if clients waited for answers: such a load has no rate.
        """
        real, last = self.stage.figures.get(THROUGHPUT), self.server.requests[self.stage.stop - 1]
        if real is None or self.server.max_concurrency is not None or last.session is not None:
            return None
        return (real < ACHIEVED * self.stage.rate_per_s) == (self.prediction.regime == "beyond the knee")

    def reach(self, name: str) -> float | None:
        """Return how far the measured figure lies from the middle of its range: 1 is the end of the range."""
        real, prediction = self.stage.figures.get(name), self.prediction
        if real is None or name not in prediction.figures:
            return None
        middle = prediction.figures[name]
        end = prediction.high[name] if real > middle else prediction.low[name]
        return 0.0 if real == middle else abs(real - middle) / max(abs(end - middle), 1e-12)


def summary(rows: Sequence[ValidationRow]) -> dict[str, Any]:
    """Return the mean and median absolute error and the bias of every figure, for each group."""
    found: dict[str, Any] = {}
    for group in GROUPS:
        chosen = [row for row in rows if row.group == group]
        names = dict.fromkeys(name for row in chosen for name in row.stage.figures)
        by_name = {}
        for name in names:
            errors = _errors(chosen, name)
            if len(errors):
                by_name[name] = {
                    "mape": float(np.abs(errors).mean()),
                    "median": float(np.median(np.abs(errors))),
                    "bias": float(errors.mean()),
                }
        found[group] = {"stages": len(chosen), "errors": by_name}
    return found


def _errors(rows: Sequence[ValidationRow], name: str) -> Any:
    return np.array([error for row in rows if (error := row.error(name)) is not None])


def _counted(rows: Sequence[ValidationRow]) -> list[ValidationRow]:
    return [row for row in rows if not row.stage.num_gave_up]


class FamilyErrors(NamedTuple):
    """Mean absolute errors of the means of one family's loads, and the growth of the E2E error with load.

    `light` and `heavy` are the errors of E2E at the lightest and the heaviest load up to `COMPARED` of the
    knee; None for a single load.
    """

    num_loads: int
    errors: Mapping[str, float]
    light: float | None
    heavy: float | None

    @property
    def rise(self) -> float | None:
        """Error at the heavy load minus that at the light load."""
        return None if self.light is None or self.heavy is None else self.heavy - self.light


def by_family(rows: Sequence[ValidationRow]) -> dict[str, FamilyErrors]:
    """Return the errors of each family, without loads whose clients gave up."""
    found = {}
    counted = _counted(rows)
    for family in sorted({row.family for row in counted}):
        own = [row for row in counted if row.family == family]
        errors = {name: float(np.abs(_errors(own, name)).mean()) for name in MEANS if len(_errors(own, name))}
        light_to_heavy = sorted(
            (row.prediction.load, error)
            for row in own
            if row.prediction.load <= COMPARED and (error := row.error("e2e mean")) is not None
        )
        ends = [error for _, error in (light_to_heavy[:1] + light_to_heavy[-1:])]
        light, heavy = ends if len(light_to_heavy) > 1 else (None, None)
        found[family] = FamilyErrors(len(own), errors, light, heavy)
    return found


KINDS: dict[str, Callable[[ValidationRow], str]] = {
    "server": lambda row: row.server.name,
    "GPU": lambda row: row.server.gpu,
    "model": lambda row: row.server.model,
}
"""Kinds of left-out sets, each with its name in a row."""


class RangeCoverage(NamedTuple):
    """Shares of measured figures within their ranges: as predicted, and with ranges fitted to the other
    servers.

    `scale` is the ratio of those ranges to the actual ones; both are None if there are no other servers.
    """

    num_figures: int
    as_is: float
    left_out: float | None
    scale: float | None


def coverages(rows: Sequence[ValidationRow]) -> Iterator[tuple[str, str, RangeCoverage]]:
    """Yield each left-out set of servers: its kind, its name, and its coverage."""
    counted = _counted(rows)
    for kind, key in KINDS.items():
        for name in sorted({key(row) for row in counted}):
            own = _reaches([row for row in counted if key(row) == name])
            others = _reaches([row for row in counted if key(row) != name])
            if len(own):
                scale = float(np.quantile(others, TARGET)) if len(others) else None
                left_out = None if scale is None else float((own <= scale).mean())
                yield kind, name, RangeCoverage(len(own), float((own <= 1).mean()), left_out, scale)


def _reaches(rows: Sequence[ValidationRow]) -> Any:
    return np.array(
        [reach for row in rows for name in row.stage.figures if (reach := row.reach(name)) is not None]
    )


def counts(rows: Sequence[ValidationRow]) -> Iterator[str]:
    """Yield the counts of held-out figures within their ranges, and of right regimes."""
    held = [
        row.prediction.holds(name, real)
        for row in rows
        if not row.stage.fitted and not row.stage.num_gave_up
        for name, real in row.stage.figures.items()
        if name in row.prediction.figures
    ]
    if held:
        yield f"{sum(held)} of {len(held)} held-out figures within their ranges ({sum(held) / len(held):.0%})"
    for kind in KINDS:
        left_out = [each for other, _, each in coverages(rows) if other == kind and each.left_out is not None]
        if left_out:
            number = sum(each.num_figures for each in left_out)
            held_then = sum(each.num_figures * (each.left_out or 0.0) for each in left_out)
            yield f"{held_then / number:.0%} with ranges made without the {kind} that they are held against"
    right = [row.is_regime_right for row in rows if row.is_regime_right is not None]
    if right:
        yield f"{sum(right)} of {len(right)} regimes right"
