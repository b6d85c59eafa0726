"""The run directory: `requests.parquet`, `steps.parquet`, `summary.json` and `config.toml`.

Law: the same input and seed give the same bytes in every file, with decode runs or without.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from actors.core.config import ConfigError
from sim.files.run_files import CONFIG, REQUESTS, STEPS, SUMMARY
from sim.files.toml import read_toml
from sim.record.recorder import Recorder

if TYPE_CHECKING:
    import pyarrow as pa


class RunError(ConfigError):
    """A run directory that cannot be read as it stands."""


class Figures(Protocol):
    """What a run came to, as `sim.figures.metrics` sums it up."""

    def to_json(self) -> str:
        """All of it; the same run gives the same bytes."""
        ...


def write_run(
    directory: Path | str, recorder: Recorder, summary: Figures, options: Mapping[str, object]
) -> None:
    """Write a run; `options` are the command's, None where one was left to its default.

    The tables of a recorder with a sink are there already.

    Makes the directory; raises ConfigError when it cannot be written.
    """
    folder = Path(directory)
    if recorder.sink is None:
        from sim.record.run_writer import write_tables

        write_tables(folder, recorder)
    try:
        (folder / SUMMARY).write_text(summary.to_json() + "\n", encoding="utf-8")
        (folder / CONFIG).write_text(_toml(options), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write results to {directory}: {error}") from None


def _toml(options: Mapping[str, object]) -> str:
    """Scalars as TOML: JSON's strings, numbers and booleans are TOML's."""
    known = {name: value for name, value in options.items() if value is not None}
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in known.items()]
    return "\n".join(["# sundog replay --config " + CONFIG, *lines, ""])


@dataclass(frozen=True, slots=True)
class Run:
    """A run on disk; the tables are read when they are asked for."""

    path: Path
    summary: dict[str, Any]
    config: dict[str, Any]

    @property
    def name(self) -> str:
        return self.path.resolve().name

    def requests(self) -> "pa.Table":
        """A row per request (`sim.record.tables.REQUEST_COLUMNS`); raises RunError."""
        return self._table(REQUESTS)

    def steps(self) -> "pa.Table":
        """A row per step (`sim.record.tables.STEP_COLUMNS`); raises RunError."""
        return self._table(STEPS)

    def _table(self, name: str) -> "pa.Table":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return pq.read_table(self.path / name)
        except (OSError, pa.ArrowException) as error:
            raise RunError(f"{self.path / name}: {error}") from None


def open_run(path: Path | str) -> Run:
    """The run that `sundog replay --out` wrote at `path`; raises RunError, naming the file."""
    folder = Path(path)
    if not folder.is_dir():
        raise RunError(f"{folder} is no run directory: give one that `replay --out` wrote")
    try:
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{folder} has no {SUMMARY}: give what `replay --out` wrote") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{folder / SUMMARY}: {error}") from None
    return Run(folder, summary, read_config(folder / CONFIG))


def read_config(path: Path) -> dict[str, Any]:
    """The options in a `config.toml`; raises RunError, naming the file."""
    return read_toml(path, RunError)
