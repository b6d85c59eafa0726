"""`sundog calibrate`: a cost model from an engine at hand, or from a log of steps or requests."""

from os.path import isdir, isfile  # unlike a Path's, they take any name
from pathlib import Path
from tempfile import NamedTemporaryFile

import click

from sundog.actors.config import ConfigError
from sundog.ends import writing
from sundog.options.clients import ServerLoads
from sundog.options.engine import SIMULATED_ONLY, EngineOptions, MeasuringOptions
from sundog.options.row import refuse
from sundog.options.simulation import ReadingOptions
from sundog.options.takes import command, takes


@command
@takes(MeasuringOptions, ServerLoads, ReadingOptions, EngineOptions, without=SIMULATED_ONLY)
@click.argument("sources", metavar="MODEL|URL [TRACE]|LOG...", nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The .toml to write, for `--cost FILE`.",
)
def calibrate(
    measuring: MeasuringOptions,
    loads: ServerLoads,
    reading: ReadingOptions,
    engine: EngineOptions,
    sources: tuple[str, ...],
    output: Path,
) -> None:
    """Fit a cost model to an engine, a server, or a log.

    MODEL is a model's folder, or sundog-tiny, the embedded model: its engine is measured here. URL is a
    server of OpenAI's API: each --request-rate is put on it, by the requests of TRACE or of a workload's
    .toml, and predicted by a fit to the others. LOG is the folder of a run, of a server's requests or of
    `bench --out`, or a file of steps (docs/measuring.md, docs/records.md).
    """
    source = sources[0]
    path = Path(source)
    _check_writable(output)
    if source.startswith(("http://", "https://")):
        return _from_server(sources, measuring, loads, reading, engine, output)
    refuse((loads, reading), "is for a server at a URL: leave it out")
    if len(sources) > 1:
        return _from_several([Path(each) for each in sources], measuring, engine, output)
    if source == "sundog-tiny" or isfile(path / "config.json"):
        from sundog.commands.calibrate.engine import from_engine

        return from_engine(source, engine, measuring, output)
    refuse((measuring, engine), OF_MODELS)
    if isfile(path):
        from sundog.commands.calibrate.logs import from_steps

        from_steps(path, output)
    elif isdir(path):
        _from_folders([path], output, engine)
    else:
        raise ConfigError(
            f"{source} is not there: give a model's folder, sundog-tiny (the embedded model), a folder of"
            " requests, or a log of steps"
        )


def _from_server(
    sources: tuple[str, ...],
    measuring: MeasuringOptions,
    asked: ServerLoads,
    reading: ReadingOptions,
    engine: EngineOptions,
    output: Path,
) -> None:
    refuse((measuring, engine), OF_MODELS, but=(*OF_LOADS, "seed"))
    if len(sources) > 2:
        raise ConfigError(f"{sources[2]} is one source too many: give a URL, and a trace or a workload")
    from sundog.commands.calibrate.live import measure_loads
    from sundog.commands.calibrate.loads import from_loads

    trace = sources[1] if len(sources) > 1 else None
    loads = measure_loads(sources[0], trace, asked, reading, engine.seed)
    from_loads(loads, f"sundog calibrate {sources[0]} --request-rate {asked.request_rate}", output, engine)


def _from_several(
    folders: list[Path], measuring: MeasuringOptions, engine: EngineOptions, output: Path
) -> None:
    refuse((measuring, engine), OF_MODELS, but=OF_LOADS)
    for folder in folders:
        if not isdir(folder) or isfile(folder / "config.json"):
            raise ConfigError(f"{folder} is no folder of requests: several sources are loads of one server")
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ConfigError("a folder is given twice: it cannot say how far off a fit to the others is")
    _from_folders(folders, output, engine)


def _from_folders(folders: list[Path], output: Path, engine: EngineOptions) -> None:
    from sundog.commands.calibrate.loads import MeasuredLoad, from_loads

    source = f"sundog calibrate {' '.join(folder.resolve().name for folder in folders)}"
    from_loads([MeasuredLoad.read(folder) for folder in folders], source, output, engine)


def _check_writable(output: Path) -> None:
    if isdir(output):
        raise ConfigError(f"cannot write {output}: it is a folder")
    if not isdir(output.parent):
        raise ConfigError(f"cannot write {output}: there is no folder {output.parent}")
    with writing(output), NamedTemporaryFile(dir=output.parent, prefix=f"{output.name}."):
        pass


OF_LOADS = ("async_scheduling", "max_num_seqs", "max_num_batched_tokens")
"""The options that may be given with the loads of a server."""
OF_MODELS = "is for a MODEL that is measured, not with a log or a URL: leave it out"
