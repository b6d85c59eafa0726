"""Writer of a run's tables during the run, in bounded memory, and reader of them in parts.

Law: the bytes depend on the rows alone, not on when they came: every row group but the last of each replica
has `ROWS` rows.
"""

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sundog.sim.files.run_files import REQUESTS, STEPS, RunError
from sundog.sim.record.columns import Columns, StepColumns
from sundog.sim.record.rows import (
    COUNTS,
    TIMES,
    Floats,
    Intervals,
    Rows,
    finished,
    requests_table,
    steps_table,
)
from sundog.sim.record.run_directory import TABLE_ID

ROWS = 2**16
SUMMED = [name for name in Rows._fields if name != "is_done"]
"""Columns of requests that figures are computed from."""


class _TableFile:
    def __init__(self, path: Path, empty: pa.Table, run_id: str | None) -> None:
        self.path = path
        self._buffer = empty
        self._writer = _writer(path, empty, run_id)

    def add(self, table: pa.Table) -> None:
        self._buffer = pa.concat_tables([self._buffer, table])
        while len(self._buffer) >= ROWS:
            self._writer.write_table(self._buffer.slice(0, ROWS).combine_chunks())
            self._buffer = self._buffer.slice(ROWS)

    def close(self) -> None:
        if len(self._buffer):
            self._writer.write_table(self._buffer.combine_chunks())
        self._writer.close()


def _writer(path: Path, empty: pa.Table, run_id: str | None) -> pq.ParquetWriter:
    metadata = {} if run_id is None else {TABLE_ID: run_id.encode()}
    schema = empty.schema.with_metadata(metadata)
    # Few values come twice: a dictionary of them takes more than it saves.
    return pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False)


class RunWriter:
    """Sink of a Recorder that writes into a directory, which it creates; then a Source of metrics.

    Raises RunError when it cannot write. The steps of replicas wait in files of their own until `close`
    concatenates them.
    """

    def __init__(
        self,
        directory: Path | str,
        num_replicas: int,
        run_id: str | None = None,
        columns: type[Columns] = Columns,
    ) -> None:
        self._folder, self._run_id = Path(directory), run_id
        self._gaps_s = array("d")
        self._is_closed = False
        with _reporting(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            rows = requests_table(columns(), 0, 0.0)
            self._requests = _TableFile(self._folder / REQUESTS, rows, run_id)
            self._steps = [
                _TableFile(self._folder / f"{STEPS}.{replica}", steps_table(replica, StepColumns()), run_id)
                for replica in range(num_replicas)
            ]

    def requests(self, columns: Columns, count: int, front_end_s: float) -> None:
        """Write the rows of requests, as a Sink."""
        with _reporting(self._folder):
            self._requests.add(requests_table(columns, count, front_end_s))

    def steps(self, replica: int, steps: StepColumns) -> None:
        """Write the steps of a replica, as a Sink."""
        self._gaps_s.extend(steps.gaps_s)
        with _reporting(self._folder):
            self._steps[replica].add(steps_table(replica, steps))

    def close(self) -> "OnDisk":
        """Complete the files, and return where the rows are; idempotent."""
        if not self._is_closed:
            self._is_closed = True
            with _reporting(self._folder):
                for file in (self._requests, *self._steps):
                    file.close()
                self._join_steps()
        return OnDisk(self._folder, self._gaps_s)

    def _join_steps(self) -> None:
        final = self._folder / STEPS
        if len(self._steps) == 1:
            self._steps[0].path.replace(final)
            return
        with _writer(final, steps_table(0, StepColumns()), self._run_id) as writer:
            for file in self._steps:
                for table in _groups(file.path):
                    writer.write_table(table)
                file.path.unlink()


@contextmanager
def _reporting(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot write results to {folder}: {error.strerror or error}") from None


class OnDisk:
    """Rows of a written run in parts; a Source of metrics."""

    def __init__(self, folder: Path, gaps_s: "array[float]") -> None:
        self._folder, self._gaps_s = folder, gaps_s

    def requests(self) -> Iterator[Rows]:
        """Read the requests again in parts, as a Source."""
        for table in _groups(self._folder / REQUESTS, SUMMED):
            yield rows_of(table)

    def intervals(self) -> Iterator[Intervals]:
        """Read the times between tokens again, as a Source."""
        before_s = 0.0
        for table in _groups(self._folder / STEPS, ["end_s", "num_intervals"]):
            end_s: Floats = table["end_s"].to_numpy()
            # Where another replica begins the difference means nothing, and counts nothing.
            yield np.diff(end_s, prepend=before_s), table["num_intervals"].to_numpy()
            before_s = float(end_s[-1])
        yield np.array(self._gaps_s), None


def rows_of(table: pa.Table) -> Rows:
    """Read the requests of a table that was written here."""
    reasons, tenants = (table[name].to_pylist() for name in ("reason", "tenant"))

    def numbers(name: str) -> Any:
        return table[name].to_numpy()

    def limit(name: str) -> Floats:
        """Return a limit's column; runs from before per-request limits have none."""
        return numbers(name) if name in table.column_names else np.full(len(reasons), np.nan)

    values = [numbers(name) for name in (*TIMES, *COUNTS[:-1])]
    values += [table["replica"].fill_null(-1).to_numpy(), finished(reasons), reasons, tenants]
    return Rows._make([*values, *(limit(name) for name in ("slo_ttft_s", "slo_tpot_s", "slo_e2e_s"))])


def _groups(path: Path, columns: list[str] | None = None) -> Iterator[pa.Table]:
    with pq.ParquetFile(path) as file:
        for number in range(file.num_row_groups):
            yield file.read_row_group(number, columns)
