"""The quantile of Student's t, against closed forms and scipy."""

import math

import pytest

from sundog.sim.figures.intervals import t_quantile

PROBABILITIES = (0.001, 0.025, 0.6, 0.75, 0.9, 0.975, 0.995, 0.9975, 0.9999)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 18, 19, 20, 59, 100, 399, 400])
def test_a_quantile_is_that_of_scipy(degrees: int) -> None:
    """To a relative 1e-12, for even and odd degrees of freedom."""
    special = pytest.importorskip("scipy.special")
    for probability in PROBABILITIES:
        expected = float(special.stdtrit(degrees, probability))
        assert t_quantile(probability, degrees) == pytest.approx(expected, rel=1e-12, abs=0)


def test_one_and_two_degrees_have_closed_forms() -> None:
    """A tangent, and a root."""
    for p in PROBABILITIES:
        assert t_quantile(p, 1) == pytest.approx(math.tan(math.pi * (p - 0.5)), rel=2e-12)
        root = (2 * p - 1) * math.sqrt(2 / (4 * p * (1 - p)))
        assert t_quantile(p, 2) == pytest.approx(root, rel=2e-12)


def test_many_degrees_approach_the_normal_distribution() -> None:
    """From above."""
    assert 1.959963984540054 < t_quantile(0.975, 100_000) < 1.96001


def test_the_ends_are_limits() -> None:
    """The median is zero; certainty is infinitely far; without a degree of freedom there is no quantile."""
    assert t_quantile(0.5, 3) == 0 and t_quantile(1.0, 3) == math.inf
    assert math.isnan(t_quantile(0.975, 0)) and t_quantile(0.0, 3) == -math.inf
