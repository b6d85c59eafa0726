"""`sundog calibrate`: a cost model from an engine at hand, or from a log of steps or requests."""

from os.path import isdir, isfile  # unlike a Path's, they take any name
from pathlib import Path
from tempfile import NamedTemporaryFile

import click

from actors.config import ConfigError
from sundog.options.engine import SIMULATED_ONLY, EngineOptions, MeasuringOptions
from sundog.options.row import rows
from sundog.options.takes import command, takes


@command
@takes(MeasuringOptions, EngineOptions, without=SIMULATED_ONLY)
@click.argument("sources", metavar="MODEL|LOG...", nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The .toml to write, for `--cost FILE`.",
)
def calibrate(
    measuring: MeasuringOptions, engine: EngineOptions, sources: tuple[str, ...], output: Path
) -> None:
    """Fit a cost model to this machine's engine, or to a log.

    MODEL is a model's folder, or sundog-tiny, the embedded model: its engine is measured over steps of many
    sizes, and behind HTTP (docs/measuring.md). The other options are those of `sundog serve`.

    LOG is the folder of a run, or of a server's log of requests, which has meta.json and
    requests.jsonl.gz (sim/figures/validate/logs.py says which fields); or a file of forward-pass
    metrics, one step a line, as `--step-log` and engines write them (docs/records.md).

    Several folders are loads of one server, as `sundog bench --out` wrote them: the file says how far it is
    off on each where it is fitted to the others alone. Limits of the engine may say how the server plans.
    """
    source = sources[0]
    path = Path(source)
    _check_writable(output)
    if len(sources) > 1:
        return _from_loads([Path(each) for each in sources], measuring, engine, output)
    if source == "sundog-tiny" or isfile(path / "config.json"):
        from sundog.commands.calibrate.engine import from_engine

        return from_engine(source, engine, measuring, output)
    _refuse_options(measuring, engine)
    from sundog.commands.calibrate.logs import from_requests, from_steps

    if isfile(path):
        from_steps(path, output)
    elif isdir(path):
        from_requests([path], output, engine)
    else:
        raise ConfigError(
            f"{source} is not there: give a model's folder, sundog-tiny (the embedded model), a folder of"
            " requests, or a log of steps"
        )


def _from_loads(
    folders: list[Path], measuring: MeasuringOptions, engine: EngineOptions, output: Path
) -> None:
    """Fit to the loads of one server."""
    _refuse_options(measuring, engine, but=OF_LOADS)
    for folder in folders:
        if not isdir(folder) or isfile(folder / "config.json"):
            raise ConfigError(f"{folder} is no folder of requests: several sources are loads of one server")
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ConfigError("a folder is given twice: it cannot say how far off a fit to the others is")
    from sundog.commands.calibrate.logs import from_requests

    from_requests(folders, output, engine)


def _check_writable(output: Path) -> None:
    """Refuse before the work what could not be written after it: a file beside it is tried."""
    if isdir(output):
        raise ConfigError(f"cannot write {output}: it is a folder")
    if not isdir(output.parent):
        raise ConfigError(f"cannot write {output}: there is no folder {output.parent}")
    try:
        with NamedTemporaryFile(dir=output.parent, prefix=f"{output.name}."):
            pass
    except OSError as error:
        raise ConfigError(f"cannot write {output}: {error.strerror or error}") from None


OF_LOADS = ("async_scheduling", "max_num_seqs", "max_num_batched_tokens")
"""What may be said of a server whose loads are given."""


def _refuse_options(measuring: MeasuringOptions, engine: EngineOptions, but: tuple[str, ...] = ()) -> None:
    for record in (measuring, engine):
        for row in rows(type(record)):
            if row.name not in but and getattr(record, row.name) != row.default:
                raise ConfigError(f"{row.flag} is for a MODEL that is measured: leave it out with a log")
