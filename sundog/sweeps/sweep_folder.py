"""The folder of a sweep: what was asked for, every run by setting and seed, and the table.

sweep.json            what was asked for: the same command goes on, another one is refused by name
runs/0-policy=fcfs/seed-0/   a run, as `replay --out` leaves it; whole or absent
traces/               requests that were drawn, as traces that `replay` reads
table.json table.csv  written when all is done
"""

import csv
import fcntl
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.config import ConfigError
from sundog.sweeps.axes import WORKLOAD

if TYPE_CHECKING:
    from sim.figures.sweep.cells import Settings
    from sim.trace.record import TraceRequest

ASKED, TABLE_JSON, TABLE_CSV = "sweep.json", "table.json", "table.csv"


@dataclass(frozen=True, slots=True)
class SweepFolder:
    """The folder at `path` of a sweep over these cells; every process has its own."""

    path: Path
    cells: "tuple[Settings, ...]"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Make the folder, and keep other sweeps out of it until the end; raises ConfigError."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            folder = os.open(self.path, os.O_RDONLY)
        except FileExistsError:
            raise self._stranger() from None
        except OSError as error:
            raise self._trouble(error) from None
        try:
            self._lock(folder)
            yield
        finally:
            os.close(folder)

    def _lock(self, folder: int) -> None:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another sweep is writing to {self.path}: wait for its end, or give another --out"
            ) from None
        except OSError as error:
            raise self._trouble(error) from None

    def begin(self, asked: Mapping[str, object]) -> None:
        """Say in the empty folder what is asked for, or go on with the same sweep; raises ConfigError."""
        text = json.dumps(asked, indent=1, default=str) + "\n"
        file = self.path / ASKED
        try:
            if file.exists():
                before = json.loads(file.read_text(encoding="utf-8"))
                return self._check(before, json.loads(text))
            if any(self.path.iterdir()):
                raise self._stranger()
            self._write(ASKED, text)
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(f"{file} is not JSON: {error}") from None
        except OSError as error:
            raise self._trouble(error) from None

    def _check(self, before: object, now: dict[str, object]) -> None:
        if not isinstance(before, dict):
            raise ConfigError(f"{self.path / ASKED} is no record of a sweep")
        for name in dict.fromkeys([*now, *before]):
            was, is_now = (each.get(name) for each in (before, now))
            if was != is_now:
                change = f"{name} {json.dumps(was)}, not {json.dumps(is_now)}"
                raise ConfigError(
                    f"{self.path} holds another sweep ({change}): give another --out, or remove it"
                )

    def run(self, settings: "Settings", seed: int) -> Path:
        """Return the folder of a run."""
        return self.path / "runs" / self._name(settings) / f"seed-{seed}"

    def trace(self, settings: "Settings", seed: int, requests: "Sequence[TraceRequest]") -> Path:
        """The requests as a file, written if it is not there yet."""
        from sim.trace.jsonl_rows import write_trace

        own = any(name.startswith(WORKLOAD) for name in settings)
        name = f"{self._name(settings)}-seed-{seed}" if own else f"seed-{seed}"
        place = self.path / "traces" / f"{name}.jsonl.gz"
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            begun = place.with_name(f".{os.getpid()}.jsonl.gz")
            block = next((row.hash_block_tokens for row in requests if row.hash_ids is not None), 0)
            write_trace(str(begun), requests, provenance="sundog sweep", seed=seed, hash_block_tokens=block)
            begun.replace(place)
        return place

    def write_table(self, text: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """The results: JSON as printed, and a line of CSV for each cell."""
        try:
            self._write(TABLE_JSON, text + "\n")
            self._write(TABLE_CSV, _csv(rows))
        except OSError as error:
            raise self._trouble(error) from None

    def _name(self, settings: "Settings") -> str:
        texts = ",".join(f"{name}={value}" for name, value in settings.items()) or "as-given"
        return f"{self.cells.index(settings)}-{re.sub(r'[^A-Za-z0-9=.,_-]+', '_', texts)[:100]}"

    def _write(self, name: str, text: str) -> None:
        begun = self.path / f".{name}"
        begun.write_text(text, encoding="utf-8")
        begun.replace(self.path / name)

    def _stranger(self) -> ConfigError:
        return ConfigError(f"--out is {self.path}, which is no sweep's folder: give an empty one")

    def _trouble(self, error: OSError) -> ConfigError:
        return ConfigError(f"cannot write results to {self.path}: {error.strerror or error}")


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Settings, rank, why a cell failed, and each figure's mean and half-width."""
    axes = list(rows[0]["settings"])
    figures = next((list(row["intervals"]) for row in rows if "intervals" in row), [])
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*axes, "rank", "failed", *(f"{n}{end}" for n in figures for end in ("", " ±"))])
    for row in rows:
        found = row.get("intervals") or {name: (None, None) for name in figures}
        values = [value for name in figures for value in found[name]]
        writer.writerow([*row["settings"].values(), row.get("rank"), row.get("failed"), *values])
    return text.getvalue()
