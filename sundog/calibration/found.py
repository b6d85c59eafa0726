"""Result of a calibration: the cost file, remarks on the fit, and loads that were not fitted."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sundog.sim.cost.calibrated import Calibrated
from sundog.sim.show.comparison import ComparedFigure

LeftOut = Mapping[str, ComparedFigure]
"""Figures of a load by name, each with the range in which it should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCost:
    """A cost file that was written."""

    file: Path
    remarks: tuple[str, ...]
    """Sentences about the fit, with its errors."""
    left_out: Mapping[str, LeftOut] = field(default_factory=dict)
    """The loads of a server by name, each predicted by a fit to the other loads alone."""


def in_words(model: Calibrated) -> str:
    """Return the coefficients in words."""
    return (
        f"{model.step * 1e3:.2f} ms a step, {model.per_token * 1e6:.2f} us a token,"
        f" {model.per_decode * 1e6:.2f} us a decode, {model.per_context_token * 1e9:.2f} ns a token"
        f" of context, {model.per_prefill_pair * 1e12:.2f} ps a pair"
    )
