"""Requests of a run's folder: those of its trace, which has more than the run's tables.

A replay keeps the place of its trace and a digest of it; the folder of a bench keeps the requests themselves.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from sundog.sim.files.run_files import CONFIG, KEPT_TRACE, REQUESTS, SUMMARY
from sundog.sim.files.toml import read_toml
from sundog.sim.trace.documents import Reading, check_request
from sundog.sim.trace.record import TraceError, TraceRequest

SOURCE = "trace_sha256"
"""Key of the trace's digest in a run's `config.toml`."""
UNTIL = b'"partial_until_s"'
"""Key in the summary of a run that broke off."""
FIELDS = ("request_id", "arrival_s", "num_prompt_tokens", "num_output_tokens")
FURTHER = ("tenant", "slo_ttft_s", "slo_tpot_s", "slo_e2e_s")
RETIMED = ("request_rate",)
"""Options of a replay that change the arrivals in the trace."""
ANSWERED = ("stop", "length")
Open = Callable[[str, Mapping[str, Any]], Iterable[TraceRequest]]
"""Function that reads the trace at a path by the run's options."""


def digest(path: Path) -> str | None:
    """Return the digest of a trace, or of a run's requests and their own trace; None if it is absent."""
    try:
        if not path.is_dir():
            return hashlib.sha256(path.read_bytes()).hexdigest()
        parts = [hashlib.sha256((path / REQUESTS).read_bytes()).hexdigest()]
        if (path / CONFIG).is_file():
            parts.append(str(read_toml(path / CONFIG).get(SOURCE)))
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()
    except OSError:
        return None


def run_rows(folder: str, open_trace: Open) -> Reading:
    """Return the requests of a run, in order of arrival; raises TraceError if its trace has changed since.

    Without its trace they are those of its tables, with a remark on what these lack.
    """
    table = _table(folder)
    source = _source(Path(folder), open_trace)
    if source is None:
        rows = sorted(map(_as_recorded, table), key=lambda row: row.arrival_s)
        _check(folder, rows)
        remark = (
            f"{folder}: its trace is missing: the contents of prompts, sessions,"
            " priorities and predictions are left out, if it had any"
        )
        return rows, (remark,)
    config, summary = Path(folder) / CONFIG, Path(folder) / SUMMARY
    options = read_toml(config) if config.is_file() else {}
    rows = list(source)
    recorded = {row["request_id"]: row for row in table}
    if not summary.is_file() or UNTIL in summary.read_bytes():
        rows = [row for row in rows if row.request_id in recorded]
    is_bench = (Path(folder) / KEPT_TRACE).is_file()
    if is_bench or any(options.get(name) is not None for name in RETIMED):
        rows = [_as_sent(row, recorded.get(row.request_id), is_bench) for row in rows]
        rows.sort(key=lambda row: row.arrival_s)
    _check(folder, rows)
    return rows, ()


def _as_recorded(row: Mapping[str, Any]) -> TraceRequest:
    return TraceRequest(
        row["request_id"],
        row["arrival_s"],
        row["num_prompt_tokens"],
        row["num_output_tokens"],
        tenant=row.get("tenant"),
        slo_ttft_s=row.get("slo_ttft_s"),
        slo_tpot_s=row.get("slo_tpot_s"),
        slo_e2e_s=row.get("slo_e2e_s"),
    )


def _as_sent(row: TraceRequest, seen: Mapping[str, Any] | None, is_bench: bool) -> TraceRequest:
    if seen is None:
        return row
    if not row.after:
        row = row._replace(arrival_s=seen["arrival_s"])
    if is_bench and seen["reason"] in ANSWERED:
        prompt, output = seen["num_prompt_tokens"], seen["num_output_tokens"]
        row = row._replace(num_prompt_tokens=prompt, num_output_tokens=max(output, 1))
    return row


def _table(folder: str) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = str(Path(folder) / REQUESTS)
    try:
        known = set(pq.read_schema(path).names)
        names = [name for name in (*FIELDS, "reason", *FURTHER) if name in known or name in FIELDS]
        rows: list[dict[str, Any]] = pq.read_table(path, columns=names).to_pylist()
        return rows
    except FileNotFoundError:
        raise TraceError(folder, 1, f"the folder has no {REQUESTS}: is it a run's?") from None
    except (OSError, pa.ArrowException) as error:
        raise TraceError(path, 1, f"cannot be read: {error}") from None


def _source(folder: Path, open_trace: Open) -> Iterable[TraceRequest] | None:
    if (folder / KEPT_TRACE).is_file():
        return open_trace(str(folder / KEPT_TRACE), {})
    if not (folder / CONFIG).is_file() or not (folder / SUMMARY).is_file():
        return None
    config = read_toml(folder / CONFIG)
    if (kept := config.get(SOURCE)) is None or not isinstance(config.get("trace"), str):
        return None
    place = folder / Path(config["trace"]).expanduser()
    if (now := digest(place)) is None:
        return None
    if now != kept:
        raise TraceError(
            str(folder), 1, f"it was made from {place}, which has changed since: give the original trace"
        )
    return open_trace(str(place), config)


def _check(folder: str, rows: Iterable[TraceRequest]) -> None:
    path, previous_s = str(Path(folder) / REQUESTS), 0.0
    for index, row in enumerate(rows):
        check_request(path, index + 1, row, previous_s)
        previous_s = row.arrival_s
