"""A run on disk: `requests.parquet`, `steps.parquet`, `summary.json`, `config.toml`, its journal.

Law: the same input and seed give the same bytes in every file, with decode runs or without. Each file carries
the run's id, and readers refuse files of another run.
"""

import hashlib
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from sundog.sim.files.run_files import CONFIG, REQUESTS, STEPS, SUMMARY, RunError, check_same_run
from sundog.sim.files.toml import read_toml, toml_text
from sundog.sim.record.rows import REQUEST_COLUMNS, STEP_COLUMNS
from sundog.sim.trace.run_rows import SOURCE, digest

if TYPE_CHECKING:
    import pyarrow as pa


RUN_ID, UNTIL = "run_id", "partial_until_s"
REPLAY = "sundog replay"
TABLE_ID = b"sundog.run_id"
"""Key of the id in the metadata of a table."""
TEXTS = ("request_id", "tenant", "reason", "refusal")
"""Columns of texts; all others hold numbers."""


def write_facts(
    folder: Path,
    run_id: str | None,
    summary: str,
    options: Mapping[str, object],
    until_s: float | None,
    command: str = REPLAY,
) -> None:
    """Write the summary, given as JSON, and the options, None for defaults.

    `until_s` is when a partial run broke off; `command` accepts the options again. Raises OSError.
    """
    own = {RUN_ID: run_id} | ({} if until_s is None else {UNTIL: until_s})
    if command == REPLAY and isinstance(trace := options.get("trace"), str):
        options = {**options, SOURCE: digest(folder / trace)}
    figures = json.dumps(own | json.loads(summary), indent=2, allow_nan=False)
    (folder / SUMMARY).write_text(figures + "\n", encoding="utf-8")
    known = {name: value for name, value in options.items() if value is not None or name != SOURCE}
    text = toml_text({RUN_ID: run_id, **known}, f"{command} --config {CONFIG}")
    (folder / CONFIG).write_text(text, encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Run:
    """Run on disk; the tables are read on demand.

    `partial_until_s` is when a partial run broke off, in seconds of its own time.
    """

    path: Path
    summary: dict[str, Any]
    config: dict[str, Any]
    run_id: str | None = None
    partial_until_s: float | None = None

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def is_clients(self) -> bool:
        """Whether only clients recorded the run, so that its steps are unknown."""
        return "client" in self.summary

    @property
    def changes_engines(self) -> bool:
        """Whether requests pass from engine to engine, which no journal records."""
        fleet = self.summary.get("fleet") or {}
        return fleet.get("transfers") is not None or fleet.get("moves") is not None

    @property
    def remark(self) -> str | None:
        """Warning for readers of the run's figures, if there is one."""
        if self.partial_until_s is None:
            return None
        return f"{self.path} is a part of a run: it broke off at {self.partial_until_s:,.3f} s"

    def requests(self) -> "pa.Table":
        """Return a row per request (`sundog.sim.record.rows.REQUEST_COLUMNS`); raises RunError."""
        return self._table(REQUESTS)

    def steps(self) -> "pa.Table":
        """Return a row per step (`sundog.sim.record.rows.STEP_COLUMNS`); raises RunError."""
        return self._table(STEPS)

    def _table(self, name: str) -> "pa.Table":
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = self.path / name
        try:
            table = pq.read_table(path)
        except FileNotFoundError:
            raise RunError(f"{self.path} has no {name}: give what `replay --out` wrote, whole") from None
        except (OSError, pa.ArrowException) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise RunError(f"{path} cannot be read: {error.strerror}") from None
            raise RunError(f"{path} is cut off or damaged: {self._again}") from None
        own = (table.schema.metadata or {}).get(TABLE_ID)
        check_same_run(self.path / SUMMARY, self.run_id, path, own and own.decode())
        check_columns(table, path, REQUEST_COLUMNS if name == REQUESTS else STEP_COLUMNS, self._again)
        return table

    @property
    def _again(self) -> str:
        if self.is_clients:
            return "measure it again"
        return f"make the run again with `sundog replay --config {quote(str(self.path / CONFIG))} --out NEW`"


def check_columns(table: "pa.Table", path: Path, names: Sequence[str], cure: str) -> None:
    """Raise RunError unless the table has these columns, with times and counts as numbers."""
    import pyarrow.types as of

    absent = [name for name in names if name not in table.column_names]
    if absent:
        raise RunError(f"{path} has no column {', '.join(absent)}: another version wrote it; {cure}")
    for name in names:
        kind = table.schema.field(name).type
        if of.is_string(kind) != (name in TEXTS) and not of.is_null(kind):
            raise RunError(f"{path}: the column {name} holds {kind}: {cure}")


def open_run(path: Path | str) -> Run:
    """Open the run that `sundog replay --out` wrote at `path`; raises RunError, naming the file."""
    folder = Path(path)
    if not folder.exists():
        raise RunError(f"{folder} does not exist: give a folder that `replay --out` or `bench --out` wrote")
    if not folder.is_dir():
        raise RunError(f"{folder} is no run directory: give one that `replay --out` or `bench --out` wrote")
    try:
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except FileNotFoundError:
        if (folder / REQUESTS).exists():
            raise RunError(
                f"{folder} is a part of a run that was killed, without {SUMMARY}: `sundog explain`"
                " reads its journal"
            ) from None
        raise RunError(f"{folder} has no {SUMMARY}: give what `replay --out` wrote") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{folder / SUMMARY}: {error}") from None
    check_figures(summary, folder / SUMMARY)
    run_id, until_s = summary.pop(RUN_ID, None), summary.pop(UNTIL, None)
    if not (folder / CONFIG).is_file():
        raise RunError(f"{folder} has no {CONFIG}: give what `replay --out` wrote, whole")
    config = read_toml(folder / CONFIG, RunError)
    check_same_run(folder / SUMMARY, run_id, folder / CONFIG, config.pop(RUN_ID, None))
    config.pop(SOURCE, None)
    return Run(folder, summary, config=config, run_id=run_id, partial_until_s=until_s)


def check_figures(summary: object, path: Path) -> None:
    """Raise RunError unless these are the figures of a run: counts, seconds and distributions."""
    if not isinstance(summary, dict) or type(summary.get("num_requests")) is not int:
        raise RunError(f"{path} is not the summary of a run: give a folder that `replay --out` wrote")
    ranges = summary.get("ranges_s") or {}
    sides = {f"ranges_s.{side}_s": ranges.get(side) for side in ("low", "high")} if ranges else {}
    for name, value in {**summary, "ranges_s": None, **sides}.items():
        parts = value.values() if isinstance(value, dict) and name.endswith("_s") else [value]
        is_number = all(part is None or type(part) in (int, float) for part in parts)
        if name.endswith("_s") and not is_number:
            raise RunError(f"{path}: {name} is {value!r}, which is no time nor a distribution")


def read_config(path: Path) -> dict[str, Any]:
    """Read the options in a `config.toml`; raises RunError, naming the file."""
    options = read_toml(path, RunError)
    options.pop(RUN_ID, None)
    options.pop(SOURCE, None)
    return options


LENGTH = 16


def replay_id(options: Mapping[str, object], folder: Path | str) -> str:
    """Return the id of a replay with these options, with paths relative to `folder`.

    Files count by their contents, wherever they are; O(their bytes).
    """
    known = {name: content(value, folder) for name, value in options.items()}
    text = json.dumps([sundog_version(), known], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]


def content(value: object, folder: Path | str) -> object:
    """Return the value of an option; if it names a file, return the file's contents."""
    if not isinstance(value, str) or not value:
        return value
    stem, is_code, name = value.partition(".py:")  # A policy is given as FILE.py:NAME.
    # Without its "..", so that it is found before the folder is there.
    path = Path(os.path.normpath(Path(folder).resolve() / (f"{stem}.py" if is_code else value)))
    try:
        path = path / REQUESTS if path.is_dir() else path
        return [hashlib.sha256(path.read_bytes()).hexdigest(), name]
    except (OSError, ValueError):
        return value  # No file, or one of which its reader will say what is wrong.


def server_id() -> str:
    """Return the id of a server that starts now."""
    return secrets.token_hex(LENGTH // 2)


def sundog_version() -> str:
    """Return the installed version; empty if Sundog is not installed."""
    try:
        return version("sundog")
    except PackageNotFoundError:
        return ""
