"""A cost file's uncertainty is its own calibration error."""

from pathlib import Path

import pytest

from sundog.sim.cost.calibrated import Calibrated, ObservedRange
from sundog.sim.cost.cost_file import MEASURED, read_cost, write_cost
from sundog.sim.cost.doubt import CALIBRATED, step_doubt

COST = Calibrated(1e-3, 1e-5, 1e-8, 0.0, 0.0)


@pytest.mark.parametrize(
    ("evidence", "doubt"),
    [
        ({}, CALIBRATED),
        ({"held_out_error_median": 0.02, "trial_error_tpot": -0.01}, CALIBRATED),
        ({"held_out_error_median": 0.02, "trial_error_tpot": -0.12}, 0.12),
        ({"held_out_error_median": 0.3}, 0.3),
        ({"trial_error_tpot": 7.5}, 0.9),
        ({"trial_error_tpot": "much"}, CALIBRATED),
    ],
)
def test_a_file_says_how_far_it_is_to_be_doubted(
    evidence: dict[str, object], doubt: float, tmp_path: Path
) -> None:
    """Never less than the usual, never so much that a step could take no time."""
    file = tmp_path / "cost.toml"
    write_cost(file, COST, "a test", ObservedRange(1.0, 1.0, 1.0, 1.0), {MEASURED: evidence})
    assert step_doubt(read_cost(file)) == pytest.approx(doubt)
