"""Means and percentiles of values of any size, some of them many times."""

import math

import numpy as np
import pytest

from sundog.sim.figures.distribution import Floats, distribution, distribution_of

KINDS = ("ticks", "alike", "wide", "huge", "tiny", "few", "zeros")


def values_of(kind: str, rng: np.random.Generator, count: int) -> Floats:
    """Durations as runs have them, and such as no run has."""
    unit = rng.random(count)
    match kind:
        case "ticks":
            return np.rint(unit * 2**30) / 2**30
        case "alike":
            return 0.01 + unit * 1e-12
        case "wide":
            return 10.0 ** (40 * unit - 20)
        case "huge":
            return unit * 1e300
        case "tiny":
            return unit * 1e-310
        case "few":
            return np.floor(unit * 3)
        case _:
            return np.zeros(count)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2, 7, 3000])
def test_the_mean_is_the_exact_sum_rounded_once(kind: str, count: int) -> None:
    """Whatever the size of the values, and however far apart they are."""
    rng = np.random.default_rng(count)
    values, counts = values_of(kind, rng, count), rng.integers(0, 9, count) + (np.arange(count) == 0)
    once, often = distribution(values), distribution_of(lambda: iter([(values, counts)]))
    assert once is not None and often is not None
    assert once.mean == math.fsum(values.tolist()) / count
    assert often.mean == math.fsum((values * counts).tolist()) / int(counts.sum())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2, 7, 3000])
def test_percentiles_are_numpys_of_all_values_written_out(kind: str, count: int) -> None:
    """Values that occur many times count as often, in however many parts they come."""
    rng = np.random.default_rng(count)
    values, counts = values_of(kind, rng, count), rng.integers(0, 9, count) + (np.arange(count) == 0)
    half = count // 2
    parts = [(values[:half], counts[:half]), (values[half:], counts[half:])]
    found = distribution_of(lambda: iter(parts))
    written_out = np.repeat(values, counts)
    assert found is not None and found.count == len(written_out)
    expected = np.percentile(written_out, [50, 90, 99])
    assert [found.p50, found.p90, found.p99] == pytest.approx(expected.tolist(), rel=1e-12, abs=0.0)


def test_an_endless_value_makes_an_endless_mean() -> None:
    """Slices of bits end at it: it is added like any other number."""
    found = distribution(np.array([1.0, math.inf]))
    assert found is not None and found.mean == math.inf
