"""Outputs of runs: a requested folder, or none."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from sundog.actors.config import ConfigError, EngineConfig
from sundog.options.config_file import kept_options

if TYPE_CHECKING:
    from sundog.actors.kernel.actor import Actor
    from sundog.actors.messages import Heard
    from sundog.sim.record.journal_file import ServerRecord
    from sundog.sim.record.run_output import RunOutput
    from sundog.sim.record.sink import Unkept
    from sundog.sim.record.step_log import StepLog

CHANGE_ENGINES = (
    ": a journal has each request on one engine, but here requests change engines, between pools or by moves"
    " of the router: leave it out"
)


def run_output(
    directory: str | None, messages: bool, journal: bool | None, config: EngineConfig, num_blocks: int
) -> "RunOutput | Unkept":
    """Return the output of the current replay, to be used in a `with` block."""
    needs_folder(directory, messages, "--out")
    if config.passes_on and journal:
        raise ConfigError(f"--journal{CHANGE_ENGINES}")
    if journal and directory is None:
        raise ConfigError("--journal needs a folder to write it to: give --out DIR")
    if directory is None:
        return _unkept()
    from sundog.sim.record.journal_rows import Header
    from sundog.sim.record.run_directory import replay_id
    from sundog.sim.record.run_output import RunOutput, kind_of_replay

    options = kept_options(directory)
    place = Path(directory)
    if place.is_dir() and place.resolve() == (place / str(options.get("trace"))).resolve():
        raise ConfigError(f"--out is {directory}, the run that is replayed: give another folder")
    header = Header.of(config, num_blocks, replay_id(options, directory))
    return RunOutput(
        directory, header, options=options, messages=messages, kind=kind_of_replay(config), journal=journal
    )


def client_output(directory: str | None, unused: Collection[str]) -> "RunOutput | Unkept":
    """Return the output of the current clients, to be used in a `with` block; `unused` options had no
    effect.
    """
    if directory is None:
        return _unkept()
    from sundog.sim.record.journal_rows import Header
    from sundog.sim.record.run_directory import server_id
    from sundog.sim.record.run_output import MEASURED, RunOutput

    return RunOutput(directory, Header(run=server_id()), kept_options(directory, unused), kind=MEASURED)


def server_record(directory: str | None, messages: bool, config: EngineConfig) -> "ServerRecord | Unkept":
    """Return the record of a starting server, to be used in a `with` block."""
    needs_folder(directory, messages, "--record")
    if directory is None:
        return _unkept()
    if config.passes_on:
        raise ConfigError(f"--record{CHANGE_ENGINES}")
    from sundog.sim.record.journal_file import ServerRecord
    from sundog.sim.record.journal_rows import Header

    return ServerRecord(directory, Header.of(config), messages)


def step_logs(path: str | None) -> "tuple[StepLog, ...]":
    """Return the listener that logs each step, if requested."""
    if path is None:
        return ()
    from sundog.sim.record.step_log import StepLog

    return (StepLog(path),)


def acceptance_log(config: EngineConfig) -> "list[Actor[Heard]]":
    """Return the listener that logs how many drafts are accepted, if there are drafts."""
    if config.speculation is None:
        return []
    from sundog.actors.metrics.logs import AcceptanceLog

    return [AcceptanceLog()]


def needs_folder(directory: str | None, messages: bool, option: str) -> None:
    """Raise ConfigError for --messages without an output folder; a server checks before it loads a model."""
    if messages and directory is None:
        raise ConfigError(f"--messages needs a folder to write them to: give {option} DIR")


def _unkept() -> "Unkept":
    from sundog.sim.record.sink import Unkept

    return Unkept()
