"""A server's own log of every request, `requests.jsonl.gz`.

Rows give `input_toks`, `output_toks` and the instants `queued_ts`, `first_token_ts` and `last_token_ts` of
one monotonic clock, taken in the engine: no front end is in them.
"""

from pathlib import Path
from typing import Any

from sundog.actors.core.config import ConfigError
from sundog.sim.files.lines import JsonLines

INSTANTS = ("queued_ts", "first_token_ts", "last_token_ts")
COUNTS = ("input_toks", "output_toks")


class MeasuredError(ConfigError):
    """Raised for a record of a real server that cannot be read."""

    @classmethod
    def at(cls, path: str, line: int, reason: str) -> "MeasuredError":
        """Return the error with the place of the fault."""
        return cls(f"{path}, line {line}: {reason}")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a log in order of arrival; their instants and counts are checked."""
    lines, rows = JsonLines(path, MeasuredError.at), []
    for row in lines.whole():
        try:
            for name in INSTANTS:
                row[name] = float(row[name])
            for name in COUNTS:
                if int(row[name]) < 1:
                    raise ValueError(f"{name} is {row[name]}")
        except (KeyError, TypeError, ValueError) as error:
            raise lines.error(str(error)) from None
        rows.append(row)
    if len(rows) < 2:
        raise MeasuredError(f"{path}: {len(rows)} rows, at least 2 are needed")
    return sorted(rows, key=lambda row: row["queued_ts"])
