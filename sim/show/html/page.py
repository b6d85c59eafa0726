"""The page: data as JSON, the charts' library and the style within it, nothing to fetch."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

from actors.core.config import ConfigError
from sim.files.whole_file import write_whole
from sim.record.run_directory import Run
from sim.show.html.facts import figures, replicas, settings, tenants, worst
from sim.show.html.series import PERCENTS, series

TITLE = "Sundog report"


def render(runs: Sequence[Run]) -> str:
    """One self-contained HTML page of these runs; the same runs give the same bytes."""
    from jinja2 import Environment

    names = _names(runs)
    drawn = [asdict(series(run)) | {"name": name} for run, name in zip(runs, names, strict=True)]
    here = files("sim.show.html")
    data = {"percents": PERCENTS.tolist(), "runs": drawn}
    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        (here / "page.html.jinja").read_text(encoding="utf-8")
    )
    return page.render(
        title=TITLE if len(runs) > 1 else f"{names[0]} – {TITLE}",
        names=names,
        figures=figures(runs),
        settings=settings(runs),
        worst=[(name, worst(run)) for run, name in zip(runs, names, strict=True)],
        tenants=tenants(runs, names),
        replicas=replicas(runs, names),
        seen_by_clients=[name for run, name in zip(runs, names, strict=True) if run.is_clients],
        # Nothing in a script may look like its end.
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        style=_asset("page.css"),
        library_style=_asset("assets/uPlot.min.css"),
        library=_asset("assets/uPlot.iife.min.js"),
        script=_asset("page.js"),
    )


def write_page(runs: Sequence[Run], path: Path) -> None:
    """Write the page; raises ConfigError when it cannot be written."""
    text = render(runs)
    try:
        write_whole(path, text)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None


def _names(runs: Sequence[Run]) -> list[str]:
    """What the runs are called: their folders' names, with a number where two are the same."""
    names = [run.name for run in runs]
    return [name if names.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(names, 1)]


def _asset(name: str) -> str:
    return files("sim.show.html").joinpath(name).read_text(encoding="utf-8")
