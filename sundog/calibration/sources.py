"""Sources of a cost model: a model on this machine, a server, loads of one, or a log of steps."""

from collections.abc import Sequence
from os.path import isdir, isfile  # unlike a Path's, they take any name
from pathlib import Path

from sundog.actors.config import ConfigError
from sundog.builds.model_files import fetched
from sundog.calibration.found import FoundCost
from sundog.ends import check_writable
from sundog.options.clients import ServerLoads
from sundog.options.engine import EngineOptions, MeasuringOptions
from sundog.options.row import refuse
from sundog.options.simulation import ReadingOptions

OF_LOADS = ("async_scheduling", "max_num_seqs", "max_num_batched_tokens")
"""Options that apply to the loads of a server."""
OF_MODELS = "applies only to a MODEL measured here, not to a log or a URL: leave it out"


def calibrated(
    sources: Sequence[str],
    output: Path,
    *,
    measuring: MeasuringOptions,
    loads: ServerLoads,
    reading: ReadingOptions,
    engine: EngineOptions,
) -> FoundCost:
    """Fit a cost model to the sources, and write its file.

    Raises ConfigError for sources that cannot be measured or read, and for options that do not apply to them.
    """
    source = sources[0]
    path = Path(source)
    check_writable(output)
    if source.startswith(("http://", "https://")):
        return _from_server(sources, output, measuring=measuring, asked=loads, reading=reading, engine=engine)
    refuse((loads, reading), "is for a server at a URL: leave it out")
    if len(sources) > 1:
        return _from_several([Path(each) for each in sources], output, measuring, engine)
    if source == "sundog-tiny" or isfile(path / "config.json"):
        from sundog.calibration.engine import from_engine

        return from_engine(source, engine, measuring, output)
    if not isfile(path) and not isdir(path) and (folder := fetched(source)) != source:
        from sundog.calibration.engine import from_engine

        return from_engine(folder, engine, measuring, output, name=source)
    refuse((measuring, engine), OF_MODELS)
    if isfile(path):
        from sundog.calibration.logs import from_steps

        return from_steps(path, output)
    if isdir(path):
        return _from_folders([path], output, engine)
    raise ConfigError(
        f"{source} is not there: give a model's folder or name on the hub, sundog-tiny (the embedded model),"
        " a folder of requests, or a log of steps"
    )


def _from_server(
    sources: Sequence[str],
    output: Path,
    *,
    measuring: MeasuringOptions,
    asked: ServerLoads,
    reading: ReadingOptions,
    engine: EngineOptions,
) -> FoundCost:
    refuse((measuring, engine), OF_MODELS, but=(*OF_LOADS, "seed"))
    if len(sources) > 2:
        raise ConfigError(f"{sources[2]} is one source too many: give a URL, and a trace or a workload")
    from sundog.calibration.live import measure_loads
    from sundog.calibration.loads import from_loads

    trace = sources[1] if len(sources) > 1 else None
    measured = measure_loads(sources[0], trace, asked, reading, engine.seed)
    command = f"sundog calibrate {sources[0]} --request-rate {asked.request_rate}"
    return from_loads(measured.loads, command, output, engine, bursts=measured.bursts)


def _from_several(
    folders: list[Path], output: Path, measuring: MeasuringOptions, engine: EngineOptions
) -> FoundCost:
    refuse((measuring, engine), OF_MODELS, but=OF_LOADS)
    for folder in folders:
        if not isdir(folder) or isfile(folder / "config.json"):
            raise ConfigError(
                f"{folder} is not a folder of recorded requests: several sources must be loads of one server"
            )
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ConfigError(
            "a folder is given twice: name each once, so that the fit can be tested on the others"
        )
    return _from_folders(folders, output, engine)


def _from_folders(folders: list[Path], output: Path, engine: EngineOptions) -> FoundCost:
    from sundog.calibration.loads import MeasuredLoad, from_loads

    command = f"sundog calibrate {' '.join(folder.resolve().name for folder in folders)}"
    return from_loads([MeasuredLoad.read(folder) for folder in folders], command, output, engine)
