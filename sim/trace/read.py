"""`read_trace`: any known format, told apart by its first line and never by its name."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from sim.trace.csv_rows import DIALECTS, CsvRows
from sim.trace.jsonl_rows import (
    OWN_FORMAT,
    bailian_rows,
    check_header,
    mooncake_rows,
    own_rows,
    parse_object,
)
from sim.trace.lines import read_lines, shown
from sim.trace.record import TraceError, TraceRequest

KNOWN = f"a sundog-trace header, {', '.join(DIALECTS)}, or Mooncake's or Qwen-Bailian's JSON rows"


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace on disk; every iteration reads it anew, in arrival order, in bounded memory.

    `format` is sundog, azure, bench, servegen, burstgpt, mooncake or bailian; `header` is our own
    format's first line, empty for the others. Iterating raises TraceError at the first bad row.
    """

    path: str
    format: str
    header: dict[str, Any] = field(default_factory=dict)

    def __iter__(self) -> Iterator[TraceRequest]:
        lines = read_lines(self.path)
        first = next(lines)
        if self.format == "bailian":
            return bailian_rows(self.path, chain([first], lines))
        if self.format == "mooncake":
            return mooncake_rows(self.path, chain([first], lines))
        if self.format == "sundog":
            return own_rows(self.path, check_header(self.path, self.header), lines)
        return CsvRows(self.path, DIALECTS[first.decode("ascii")]).read(lines)


def read_trace(path: str) -> Trace:
    """The trace at `path`, its format recognised; raises TraceError when it is none we know."""
    lines = read_lines(path)
    first = next(lines)
    lines.close()  # type: ignore[attr-defined]
    if first.lstrip().startswith(b"{"):
        header = parse_object(path, 1, first)
        if "chat_id" in header:
            return Trace(path, "bailian")
        if "timestamp" in header:
            return Trace(path, "mooncake")
        if header.get("format") == OWN_FORMAT:
            check_header(path, header)
            return Trace(path, "sundog", header)
        raise TraceError(path, 1, f"not a known trace: {shown(first)}; known: {KNOWN}")
    try:
        dialect = DIALECTS.get(first.decode("ascii"))
    except UnicodeDecodeError:
        raise TraceError(path, 1, f"the first line is not text: {shown(first)}") from None
    if dialect is None:
        raise TraceError(path, 1, f"not a known header: {shown(first)}; known: {KNOWN}")
    return Trace(path, dialect.name)
