"""Tables with named columns: CSV, JSON lines and Parquet.

`arrival=COLUMN` may have its unit after a colon (`arrival=sent_at:ms`); dates are ISO 8601.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from sundog.actors.core.records import dataclass
from sundog.sim.files.lines import parse_object, read_lines
from sundog.sim.trace.documents import Reading, instant_s
from sundog.sim.trace.record import TraceError, TraceRequest, default_id
from sundog.sim.trace.tool_rows import in_order

UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
NEEDED = ("prompt", "output")
KINDS = (
    "arrival",
    *NEEDED,
    "id",
    "session",
    "tenant",
    "priority",
    "predicted",
    "slo_ttft_s",
    "slo_tpot_s",
    "slo_e2e_s",
)
MAGIC = b"PAR1"
"""First bytes of a Parquet file."""
DELIMITERS = ",;\t|"
"""Possible delimiters of a CSV file."""
FORM = "arrival=COLUMN,prompt=COLUMN,output=COLUMN"


@dataclass(frozen=True, slots=True)
class TableColumns:
    """Column of each kind of value, and the number of the arrival's units per second."""

    names: Mapping[str, str]
    per_s: int = 1


def parse_columns(text: str) -> TableColumns:
    """Parse `arrival=sent_at:ms,prompt=in,output=out`; raises ValueError for other text."""
    names: dict[str, str] = {}
    for part in text.split(","):
        kind, equals, name = part.strip().partition("=")
        if not equals or not name or kind not in KINDS or kind in names:
            raise ValueError(f"give {FORM}, each kind once; kinds are {', '.join(KINDS)}")
        names[kind] = name
    if missing := [kind for kind in NEEDED if kind not in names]:
        raise ValueError(f"{missing[0]} has no column: give {FORM}")
    name, colon, unit = names.get("arrival", "").rpartition(":")
    if not colon:
        return TableColumns(names)
    if unit not in UNITS:
        raise ValueError(f"an arrival is in {', '.join(UNITS)}, and not in {unit}")
    return TableColumns({**names, "arrival": name}, UNITS[unit])


def is_parquet(path: str) -> bool:
    """Return whether a file is Parquet, by its first bytes."""
    try:
        with Path(path).open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False  # its reader will say what is wrong


def table_rows(path: str, columns: TableColumns) -> Reading:
    """Return the requests of a table in order of arrival, counted from the first of them."""
    rows = list(_rows(path, columns))
    instants = [row[1] for row in rows]
    first = min(instants, default=Decimal(0))
    requests = [
        _request(path, number, index, float((instant - first) / columns.per_s), values, columns.names)
        for index, (number, instant, values) in enumerate(rows)
    ]
    if not requests:
        raise TraceError(path, 1, "there are no rows")
    requests = in_order(path, requests)
    if "id" not in columns.names:
        requests = [row._replace(request_id=default_id(index)) for index, row in enumerate(requests)]
    if "arrival" in columns.names:
        return requests, ()
    return requests, (
        f"{path}: --columns names no arrival: all arrive at once; --request-rate gives arrivals",
    )


def _rows(path: str, columns: TableColumns) -> Iterator[tuple[int, Decimal, dict[str, Any]]]:
    wanted = columns.names
    for number, values in _parquet(path, wanted) if is_parquet(path) else _lines(path, wanted):
        for kind in ("arrival", *NEEDED):
            if kind in wanted and values.get(wanted[kind]) in (None, ""):
                raise TraceError(path, number, "missing", wanted[kind])
        value = values[wanted["arrival"]] if "arrival" in wanted else 0
        yield number, _instant(path, number, value, columns), values


def _parquet(path: str, wanted: Mapping[str, str]) -> Iterator[tuple[int, dict[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        known = pq.read_schema(path).names
        _check(path, wanted, known)
        table = pq.read_table(path, columns=list(dict.fromkeys(wanted.values())))
    except (OSError, pa.ArrowException) as error:
        raise TraceError(path, 1, f"cannot be read: {error}") from None
    yield from enumerate(table.to_pylist(), 1)


def _lines(path: str, wanted: Mapping[str, str]) -> Iterator[tuple[int, dict[str, Any]]]:
    lines = read_lines(path, TraceError)
    first = next(lines)
    if first.strip() == b"{" or first.lstrip().startswith(b"["):
        reason = "--columns reads JSON by lines: write each row as an object in a line of its own"
        raise TraceError(path, 1, reason)
    if first.lstrip().startswith(b"{"):
        for number, line in enumerate(_chained(first, lines), 1):
            values = parse_object(path, number, line, TraceError)
            if number == 1:
                _check(path, wanted, list(values))
            yield number, values
        return
    try:
        texts = (line.decode("utf-8") for line in _chained(first, lines))
        reader = csv.reader(texts, delimiter=_delimiter(first, wanted), strict=True)
        names = next(reader)
        _check(path, wanted, names)
        for row in reader:
            if len(row) != len(names):
                raise TraceError(path, reader.line_num, f"{len(row)} columns instead of {len(names)}")
            yield reader.line_num, dict(zip(names, row, strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise TraceError(path, 1, f"not a table of text: {error}") from None


def _delimiter(first: bytes, wanted: Mapping[str, str]) -> str:
    for delimiter in DELIMITERS:
        names = next(csv.reader([first.decode("utf-8")], delimiter=delimiter, strict=True))
        if set(wanted.values()) <= set(names):
            return delimiter
    return ","


def _chained(first: bytes, rest: Iterable[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _check(path: str, wanted: Mapping[str, str], known: list[str]) -> None:
    for kind, name in wanted.items():
        if name not in known:
            raise TraceError(
                path, 1, f"there is no such column for {kind}; there are {', '.join(known)}", name
            )


def _instant(path: str, number: int, value: object, columns: TableColumns) -> Decimal:
    """Return a time in the column's unit, exactly as written; dates become seconds since 1970."""
    try:
        if isinstance(value, datetime):
            aware = value if value.tzinfo else value.replace(tzinfo=UTC)
            return Decimal(str(aware.timestamp())) * columns.per_s
        found = Decimal(str(value)) if not isinstance(value, bool) else Decimal("nan")
    except InvalidOperation:
        try:
            return Decimal(str(instant_s(str(value)))) * columns.per_s
        except ValueError:
            found = Decimal("nan")
    if not found.is_finite():
        raise TraceError(
            path, number, f"{value!r:.40} is neither a number nor a date", columns.names["arrival"]
        )
    return found


def _request(
    path: str, number: int, index: int, arrival_s: float, values: dict[str, Any], names: Mapping[str, str]
) -> TraceRequest:
    def held(kind: str) -> Any:
        value = values.get(names[kind]) if kind in names else None
        return None if value == "" else value

    def whole(kind: str) -> int | None:
        value = held(kind)
        try:
            found = None if value is None else Decimal(str(value))
        except InvalidOperation:
            found = Decimal("nan")
        if found is None:
            return None
        if isinstance(value, bool) or not found.is_finite() or found != found.to_integral_value():
            raise TraceError(path, number, f"{value!r:.40} is not a whole number", names[kind])
        return int(found)

    def limit(kind: str) -> float | None:
        value = held(kind)
        try:
            found = None if value is None else float(value)
        except (TypeError, ValueError):
            found = -1.0
        if found is not None and not 0 < found < 2.0**22:
            raise TraceError(path, number, f"{value!r:.40} is not a time above 0 s", names[kind])
        return found

    def text(kind: str) -> str | None:
        value = held(kind)
        return None if value is None else str(value)

    return TraceRequest(
        text("id") or default_id(index),
        arrival_s,
        whole("prompt") or 0,
        whole("output") or 0,
        priority=whole("priority") or 0,
        tenant=text("tenant"),
        session=text("session"),
        slo_ttft_s=limit("slo_ttft_s"),
        slo_tpot_s=limit("slo_tpot_s"),
        slo_e2e_s=limit("slo_e2e_s"),
        predicted_tokens=whole("predicted"),
    )


SIMULATED_BY_LLMSERVINGSIM = b"instance id,request id,model,input,output,arrival,end_time,"
"""Beginning of LLMServingSim's results, which are CSV with a list in quotes; times in ns."""
LLMSERVINGSIM = TableColumns({"arrival": "arrival", "prompt": "input", "output": "output"}, UNITS["ns"])
