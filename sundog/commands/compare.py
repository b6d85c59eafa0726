"""`sundog compare`: differences of two run directories, with confidence."""

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sundog.options.config_file import from_here
from sundog.options.row import Switch, option, rows
from sundog.options.simulation import ReadingOptions
from sundog.options.takes import command, takes
from sundog.sweeps.axes import VARIED

if TYPE_CHECKING:
    from sundog.sim.figures.compare import Comparison
    from sundog.sim.record.run_directory import Run

MOST_RUNS = 1000
"""Most replications to suggest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """Options of the output of differences."""

    as_json: bool = option(False, Switch(pair=False), "Print the results as JSON.", flag="--json")


@command
@takes(CompareOptions)
@click.argument("first", type=click.Path(path_type=Path), metavar="A")
@click.argument("second", type=click.Path(path_type=Path), metavar="B")
def compare(asked: CompareOptions, first: Path, second: Path) -> None:
    """Compare two runs, with confidence intervals.

    A and B are folders of `replay --out` or `bench --out`.
    """

    from sundog.sim.figures.compare import compare as compare_runs
    from sundog.sim.record.run_directory import open_run
    from sundog.sim.show.comparison import print_comparison, to_json
    from sundog.sim.show.console import console_for

    a, b = open_run(first), open_run(second)
    for run in (a, b):
        if run.remark is not None:
            click.echo(run.remark, err=True)
    found = compare_runs(a, b)
    if asked.as_json:
        click.echo(to_json(found))
    else:
        console = console_for()
        print_comparison(found, (a.name, b.name), console)
        if (hint := _how_many_would_tell(found, a, b)) is not None:
            console.print(hint, markup=False, soft_wrap=True)


def _how_many_would_tell(found: "Comparison", a: "Run", b: "Run") -> str | None:
    from sundog.sim.figures.compare import replications_that_tell

    mean = next((figure for figure in found.figures if figure.name == "TTFT mean"), None)
    if mean is None or (count := replications_that_tell(mean.change)) is None:
        return None
    text = f"To detect a difference this small in mean TTFT you would need about {count:,} runs of each"
    trace = str(a.config.get("trace", ""))
    if count > MOST_RUNS or not found.settings or not {*found.settings} <= {*VARIED} or not trace:
        return f"{text}."
    words = ["sundog", "sweep", os.path.relpath(a.path / trace)]
    words += [] if trace.endswith(".toml") else ["--resample"]
    for name, row in (VARIED | {row.name: row for row in rows(ReadingOptions)}).items():
        if name in found.settings:
            values = (row.default if value is None else value for value in found.settings[name])
            first, second = (
                from_here(row, value, run.path) for value, run in zip(values, (a, b), strict=True)
            )
            if first is None or second is None:  # the GPU or the model decided
                return f"{text}."
            words += ["--vary", f"{name}={first},{second}"]
        elif (value := a.config.get(name, row.default)) != row.default:
            words += [f"--no-{row.flag[2:]}"] if value is False else [row.flag]
            words += [] if isinstance(value, bool) else [str(from_here(row, value, a.path))]
    words += ["--replications", str(count), "--metric", "ttft_s.mean"]
    return f"{text}: {shlex.join(words)}"
