"""A log that a client kept of its requests: CSV, perhaps gzipped, one row a request.

| column | what |
|---|---|
| `arrival_s` | when the request was there to be sent; only a limit on clients makes `send_s` later than it |
| `send_s` | when it was sent: TTFT and E2E count from here |
| `first_chunk_s`, `last_chunk_s` | when the first and the last chunk of its answer came |
| `prompt_tokens`, `output_tokens` | how many it had |
| `prompt_id` | optional: rows with the same one asked the same prompt |

Instants are seconds of one clock, whatever its zero.
"""

import csv
import gzip
from pathlib import Path

import numpy as np

from sim.figures.validate.measured import Figures, MeasuredError, figures_of
from sim.figures.validate.prompts import Rounds
from sim.trace.record import TraceRequest

INSTANTS = ("arrival_s", "send_s", "first_chunk_s", "last_chunk_s")
COUNTS = ("prompt_tokens", "output_tokens")


def read_client_log(path: Path) -> tuple[list[TraceRequest], Figures]:
    """Requests in order of sending, the first at 0, and what the client measured."""
    rows = sorted(_rows(path), key=lambda row: row[1])
    start_s = rows[0][1]
    prompts: dict[str, int] = {}
    requests = []
    for number, (_, send_s, _, _, prompt, output, name) in enumerate(rows):
        index = prompts.setdefault(name or f"row {number}", len(prompts))
        each = Rounds(1, len(rows), 0).request(index, send_s - start_s, int(prompt), int(output))
        ids = each.hash_ids if name else None
        requests.append(
            TraceRequest(
                str(number),
                each.arrival_s,
                each.num_prompt_tokens,
                each.num_output_tokens,
                hash_ids=ids,
                hash_block_tokens=each.hash_block_tokens if name else 0,
            )
        )
    columns = [np.array([row[i] for row in rows], dtype=np.float64) for i in (1, 2, 3, 5)]
    return requests, figures_of(*columns)


Row = tuple[float, float, float, float, float, float, str]


def _rows(path: Path) -> list[Row]:
    try:
        with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
            reader = csv.DictReader(file)
            missing = {*INSTANTS, *COUNTS} - set(reader.fieldnames or ())
            if missing:
                raise MeasuredError(f"{path}: missing column {', '.join(sorted(missing))}")
            rows = [_row(path, number, row) for number, row in enumerate(reader, 2)]
    except (OSError, ValueError, EOFError) as error:
        raise MeasuredError(f"{path}: {error}") from None
    if len(rows) < 2:
        raise MeasuredError(f"{path}: {len(rows)} rows, at least 2 are needed")
    return rows


def _row(path: Path, number: int, row: dict[str, str]) -> Row:
    values = []
    for name in (*INSTANTS, *COUNTS):
        try:
            values.append(float(row[name]))
        except (TypeError, ValueError):
            raise MeasuredError.at(str(path), number, f"{name} is {row[name]!r}") from None
        if name in COUNTS and (values[-1] < 1 or not values[-1].is_integer()):
            raise MeasuredError.at(str(path), number, f"{name} is {row[name]}: a whole number of at least 1")
    arrival_s, send_s, first_s, last_s, prompt, output = values
    if not arrival_s <= send_s <= first_s <= last_s:
        raise MeasuredError.at(str(path), number, f"the instants {', '.join(INSTANTS)} do not rise")
    return arrival_s, send_s, first_s, last_s, prompt, output, row.get("prompt_id") or ""
