"""Logs of every request of one server, of two kinds.

A server's own log is `meta.json` and `requests.jsonl.gz`. Rows give `input_toks`, `output_toks` and the
instants `queued_ts`, `first_token_ts` and `last_token_ts` of one monotonic clock, taken in the engine: no
front end is in them.

A client's log of its requests is CSV, perhaps gzipped, one row a request.

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
from typing import Any

import numpy as np

from actors.core.engine_version import is_async
from sim.figures.validate.measured import (
    Figures,
    MeasuredError,
    MeasuredServer,
    Rounds,
    Stage,
    engine_options,
    figures_of,
    model_of,
)
from sim.files.lines import JsonLines, parse_object, read_lines
from sim.trace.record import TraceRequest

INSTANTS = ("queued_ts", "first_token_ts", "last_token_ts")
COUNTS = ("input_toks", "output_toks")


def read_log(folder: Path) -> MeasuredServer:
    """The server that wrote `folder`; raises MeasuredError naming file, line and field."""
    meta = _object(folder / "meta.json")
    rows = read_rows(folder / "requests.jsonl.gz")
    start_s = rows[0]["queued_ts"]
    requests = [
        TraceRequest(str(i), row["queued_ts"] - start_s, row["input_toks"], row["output_toks"])
        for i, row in enumerate(rows)
    ]
    engine = meta.get("engine_kwargs")
    if not isinstance(engine, dict):
        raise MeasuredError(f"{folder / 'meta.json'}: engine_kwargs is missing")
    cache, version = meta.get("kv_cache") or {}, str(meta.get("vllm_version"))
    options, refused = engine_options({**cache, **engine})
    try:
        return MeasuredServer(
            name=folder.name,
            model=model_of(str(engine["model"]), folder),
            gpu=folder.name.partition("_")[0],
            tensor_parallel_size=int(engine["tensor_parallel_size"]),
            max_num_seqs=int(engine["max_num_seqs"]),
            max_num_batched_tokens=int(engine["max_num_batched_tokens"]),
            max_model_len=engine.get("max_model_len"),
            num_gpu_blocks=cache.get("num_gpu_blocks"),
            gpu_memory_utilization=cache.get("gpu_memory_utilization"),
            refused=refused,
            options=options,
            async_scheduling=is_async(version, options.pipeline_parallel_size),
            engine_version=version,
            at_client=False,
            requests=requests,
            stages=[Stage("all", 0, len(rows), len(rows) / requests[-1].arrival_s, _figures(rows))],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise MeasuredError(f"{folder / 'meta.json'}: engine_kwargs: {error}") from None


def _object(path: Path) -> dict[str, Any]:
    text = b"\n".join(read_lines(str(path), MeasuredError.at))
    return parse_object(str(path), 1, text, MeasuredError.at)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a log in order of arrival, their instants and counts checked."""
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


def _figures(rows: list[dict[str, Any]]) -> Figures:
    queued, first, last = (np.array([row[name] for row in rows]) for name in INSTANTS)
    return figures_of(queued, first, last, np.array([row["output_toks"] for row in rows]))


CLIENT_INSTANTS = ("arrival_s", "send_s", "first_chunk_s", "last_chunk_s")
CLIENT_COUNTS = ("prompt_tokens", "output_tokens")


def read_client_log(path: Path) -> tuple[list[TraceRequest], Figures]:
    """Requests in order of sending, the first at 0, and what the client measured."""
    rows = sorted(_rows(path), key=lambda row: row[1])
    start_s = rows[0][1]
    prompts: dict[str, int] = {}
    requests = []
    for number, (_, send_s, _, _, prompt, output, name) in enumerate(rows):
        index = prompts.setdefault(name or f"row {number}", len(prompts))
        each = Rounds(1, len(rows), 0).request(index, send_s - start_s, int(prompt), int(output))
        each = each if name else each._replace(hash_ids=None, hash_block_tokens=0)
        requests.append(each._replace(request_id=str(number)))
    columns = [np.array([row[i] for row in rows], dtype=np.float64) for i in (1, 2, 3, 5)]
    return requests, figures_of(*columns)


Row = tuple[float, float, float, float, float, float, str]


def _rows(path: Path) -> list[Row]:
    try:
        with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
            reader = csv.DictReader(file)
            missing = {*CLIENT_INSTANTS, *CLIENT_COUNTS} - set(reader.fieldnames or ())
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
    for name in (*CLIENT_INSTANTS, *CLIENT_COUNTS):
        try:
            values.append(float(row[name]))
        except (TypeError, ValueError):
            raise MeasuredError.at(str(path), number, f"{name} is {row[name]!r}") from None
        if name in CLIENT_COUNTS and (values[-1] < 1 or not values[-1].is_integer()):
            raise MeasuredError.at(str(path), number, f"{name} is {row[name]}: a whole number of at least 1")
    arrival_s, send_s, first_s, last_s, prompt, output = values
    if not arrival_s <= send_s <= first_s <= last_s:
        raise MeasuredError.at(str(path), number, f"the instants {', '.join(CLIENT_INSTANTS)} do not rise")
    return arrival_s, send_s, first_s, last_s, prompt, output, row.get("prompt_id") or ""
