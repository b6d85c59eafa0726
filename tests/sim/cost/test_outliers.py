"""Outliers among measured points are excluded (`sim/cost/tables/outliers.py`)."""

from pathlib import Path

import numpy as np
import pytest

from sundog.sim.cost.tables.attention import GenerationAttention
from sundog.sim.cost.tables.interpolate import Floats, load
from sundog.sim.cost.tables.outliers import mended_grid, mended_line, outliers
from sundog.sim.cost.work import Coverage
from sundog.sim.hardware.gpu import load_gpu
from tools.distil.outliers import Grid, all_outliers, grids, page

ROOT = Path(__file__).parents[3]
OTHER_KERNEL = {
    (file, "generation", of)
    for file in ("h100", "h200")
    for of in ((1, 1, 512), (2, 1, 512), (4, 1, 512), (8, 1, 512), (16, 2, 512))
}
"""Where 1,024 decodes take a tenth of what 512 take, at ten contexts: no accident."""


def test_of_two_that_contradict_each_other_the_one_goes_that_contradicts_more() -> None:
    """By hand, of 10 + i + j: 90 exceeds all points behind it, 9 falls below those before, 12 is noise."""
    places: Floats = np.arange(6.0)
    seconds = 10 + places[:, None] + places
    seconds[1, 1], seconds[3, 3], seconds[0, 3] = 90, 9, 12
    seconds[5, 5] = np.nan
    assert np.argwhere(outliers(seconds)).tolist() == [[1, 1], [3, 3]]
    sizes = 2**places
    mended = mended_grid(sizes, sizes, seconds)
    # In straight lines along a row: of 2 between 1 and 4, where 11 and 13 stand, and of 8 between 4 and 16.
    assert mended[1, 1] == pytest.approx(11 + (2 - 1) / (4 - 1) * (13 - 11))
    assert mended[3, 3] == pytest.approx(15 + (8 - 4) / (16 - 4) * (17 - 15))
    changed = ~np.isclose(mended, seconds, equal_nan=True)
    assert np.argwhere(changed).tolist() == [[1, 1], [3, 3]]


def test_an_outlier_of_a_line_lies_between_its_neighbours_in_log_space() -> None:
    """The mean of logarithms in the middle, the next value before the first, and nothing without one."""
    sizes = np.array([1, 2, 4, 8])
    assert mended_line(sizes, np.array([4.0, 60, 16, 17])).tolist() == pytest.approx([4, 8, 16, 17])
    assert mended_line(sizes, np.array([60.0, 4, 16, 17])).tolist() == pytest.approx([4, 4, 16, 17])
    rising = np.array([4.0, 5, 16, 13])
    assert mended_line(sizes, rising) is rising


def test_no_measured_point_moves_its_neighbours_by_more_than_thirty_percent() -> None:
    """In no table that is made to rise, of no GPU, but where another kernel was measured."""
    seen, moved = 0, set()
    for grid in grids():
        seen += 1
        if not _raised(grid) <= 1.3 * (1 + 1e-9):
            moved.add((grid.file, grid.table, grid.of))
    assert seen > 1500
    assert moved == OTHER_KERNEL


def _raised(grid: Grid) -> float:
    """The largest factor by which a running maximum raises a measured point that was kept."""
    mended = np.where(np.isnan(grid.mended_s), 0.0, grid.mended_s)
    highest = np.maximum.accumulate(np.maximum.accumulate(mended, axis=1), axis=0)
    kept = ~np.isnan(grid.measured_s) & ~outliers(grid.measured_s)
    return float((highest[kept] / grid.measured_s[kept]).max())


def test_four_decodes_of_an_a100_take_what_their_neighbours_take() -> None:
    """93.7 microseconds were measured with a context of 511, and 22.6 and 27.4 with 255 and 1,023."""
    attention = GenerationAttention(load("a100-80gb"), 32, 4, 128, load_gpu("a100-80gb"), Coverage())
    low, high = attention.seconds(4, 256), attention.seconds(4, 1024)
    assert low == pytest.approx(22.6e-6, rel=0.1)
    assert high == pytest.approx(27.4e-6, rel=0.1)
    assert low < attention.seconds(4, 512) < high


def test_few_points_are_left_out_and_the_page_lists_them() -> None:
    """One in a thousand; `docs/models.md` ends with the table that the tool prints."""
    found = list(all_outliers())
    assert 100 < len(found) < 300
    assert ("a100-80gb", "generation", (32, 4, 128), (4, 511)) in {each[:4] for each in found}
    assert (ROOT / "docs/models.md").read_text(encoding="utf-8").endswith(f"\n\n{page()}\n")
