"""Folder of a sweep: its options, every run by setting and seed, and the table.

sweep.json            options of the sweep: the same command goes on, another one is refused by name
runs/0-policy=fcfs/seed-0/   a run, as `replay --out` leaves it; whole or absent
traces/               requests that were sampled, as traces that `replay` reads
table.json table.csv  written at the end
"""

import csv
import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sundog.sweeps.axes import WORKLOAD
from sundog.sweeps.kept_folder import KeptFolder

if TYPE_CHECKING:
    from sundog.sim.figures.sweep.cells import Settings
    from sundog.sim.trace.record import TraceRequest

ASKED, TABLE_JSON, TABLE_CSV = "sweep.json", "table.json", "table.csv"


@dataclass(frozen=True, slots=True)
class SweepFolder:
    """Folder at `path` of a sweep over these cells; every process has its own object."""

    path: Path
    cells: "tuple[Settings, ...]"

    @property
    def kept(self) -> KeptFolder:
        """Folder with the sweep's options."""
        return KeptFolder(self.path, "sweep", ASKED)

    def run(self, settings: "Settings", seed: int) -> Path:
        """Return the folder of a run."""
        return self.path / "runs" / self._name(settings) / f"seed-{seed}"

    def trace(self, settings: "Settings", seed: int, requests: "Sequence[TraceRequest]") -> Path:
        """Return the file of the requests, written if it does not exist."""
        from sundog.sim.trace.jsonl_rows import write_trace

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
        """Write the results: JSON as printed, and a line of CSV for each cell."""
        try:
            self.kept.write(TABLE_JSON, text + "\n")
            self.kept.write(TABLE_CSV, _csv(rows))
        except OSError as error:
            raise self.kept.trouble(error) from None

    def _name(self, settings: "Settings") -> str:
        texts = ",".join(f"{name}={value}" for name, value in settings.items()) or "as-given"
        return f"{self.cells.index(settings)}-{re.sub(r'[^A-Za-z0-9=.,_-]+', '_', texts)[:100]}"


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
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
