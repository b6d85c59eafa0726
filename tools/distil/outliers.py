"""Print the measured points that are not used because they contradict their neighbours.

    python -m tools.distil.outliers

The table of `docs/models.md`, from the tables that Sundog ships (`sim/cost/tables/outliers.py`).
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from sundog.sim.cost.tables.interpolate import FOLDER, Floats, Points, distinct, load
from sundog.sim.cost.tables.outliers import mended_grid, mended_line, outliers

NUM_AXES = {
    "generation": 2,
    "window": 2,
    "latent": 2,
    "latent_fp8": 2,
    "sparse": 2,
    "sparse_fp8": 2,
    "context": 1,
    "window_prompt": 1,
    "latent_prompt": 1,
    "latent_prompt_fp8": 1,
    "delta": 1,
    "delta_prompt": 1,
    "reduce": 1,
    "gather": 1,
    "scatter": 1,
}
"""Tables whose values must not fall along their axes, and the number of axes, which are the last columns."""


class Outlier(NamedTuple):
    """Measured point and its replacement; `at` is its batch and context, or its size."""

    file: str
    table: str
    of: tuple[int, ...]
    at: tuple[int, ...]
    measured_s: float
    replaced_s: float


class Grid(NamedTuple):
    """Points of a table that differ only along its axes, as a matrix; a line is a matrix of one row."""

    file: str
    table: str
    of: tuple[int, ...]
    rows: Points
    columns: Points
    measured_s: Floats
    mended_s: Floats


def grids() -> Iterator[Grid]:
    """Yield every table whose values must not fall, of every GPU."""
    for file in sorted(path.name.removesuffix(".npz") for path in FOLDER.iterdir()):
        if not file.startswith("."):
            yield from _grids_of(file)


def _grids_of(file: str) -> Iterator[Grid]:
    tables = load(file)
    for table, num_axes in NUM_AXES.items():
        points: Points | None = tables.get(table)
        if points is None or not len(points):
            continue
        for of in sorted(set(map(tuple, points[:, :-num_axes].tolist()))):
            own = (points[:, :-num_axes] == of).all(axis=1)
            rows, row = distinct(points[own][:, -2] if num_axes == 2 else np.zeros(own.sum(), np.int64))
            columns, column = distinct(points[own][:, -1])
            measured: Floats = np.full((len(rows), len(columns)), np.nan)
            measured[row, column] = tables[f"{table}_s"][own]
            if num_axes == 1:
                mended = mended_line(columns, measured[0])[None]
            else:
                # A step of `generation` writes its token first.
                contexts = (columns + (table == "generation")).astype(np.float64)
                mended = mended_grid(rows.astype(np.float64), contexts, measured)
            yield Grid(file, table, of, rows, columns, measured, mended)


def all_outliers() -> Iterator[Outlier]:
    """Yield every point that is not used."""
    for grid in grids():
        for row, column in np.argwhere(outliers(grid.measured_s)).tolist():
            at = int(grid.rows[row]), int(grid.columns[column])
            times = float(grid.measured_s[row, column]), float(grid.mended_s[row, column])
            yield Outlier(grid.file, grid.table, grid.of, at if NUM_AXES[grid.table] == 2 else at[1:], *times)


def page() -> str:
    """Return the table of the page, with a line for each table and size."""
    groups: dict[tuple[str, str, tuple[int, ...]], list[str]] = {}
    for each in all_outliers():
        at = " × ".join(f"{size:,}" for size in each.at)
        text = f"{at}: {each.measured_s * 1e6:,.4g} → {each.replaced_s * 1e6:,.4g}"
        groups.setdefault((each.file, each.table, each.of), []).append(text)
    lines = ["| file | table | of | points: measured → replaced (µs) |", "|---|---|---|---|"]
    for (file, table, of), texts in groups.items():
        lines.append(f"| {file} | {table} | {', '.join(map(str, of))} | {'; '.join(texts)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(page())
