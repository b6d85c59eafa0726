"""Recorded runs as traces: our own run directories, and the results of `vllm bench serve`."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sim.files.lines import decode
from sim.files.run_files import REQUESTS
from sim.trace.record import TraceError, TraceRequest, arrival_problem, default_id, tokens_problem

COLUMNS = ["request_id", "arrival_s", "num_prompt_tokens", "num_output_tokens", "tenant"]


def run_rows(folder: str) -> Iterator[TraceRequest]:
    """The requests of a run directory, with the lengths that their answers came to."""
    path = str(Path(folder) / REQUESTS)
    try:
        table = pq.read_table(path, columns=COLUMNS)
    except FileNotFoundError:
        raise TraceError(folder, 1, f"the folder has no {REQUESTS}: is it a run's?") from None
    except (OSError, pa.ArrowException) as error:
        raise TraceError(path, 1, f"cannot be read: {error}") from None
    previous_s = 0.0
    for index, row in enumerate(table.to_pylist()):
        request = TraceRequest(
            row["request_id"],
            row["arrival_s"],
            row["num_prompt_tokens"],
            row["num_output_tokens"],
            tenant=row["tenant"],
        )
        _check(path, index + 1, request, previous_s)
        previous_s = request.arrival_s
        yield request


def bench_result_rows(path: str, values: dict[str, Any]) -> Iterator[TraceRequest]:
    """The requests of a detailed result of `vllm bench serve`, by its lists of lengths.

    `start_times` are on any clock; without them everything arrives at once. Requests of one instant keep the
    file's order.
    """
    prompts, outputs = values.get("input_lens"), values.get("output_lens")
    starts = values.get("start_times")
    for name, column in (("input_lens", prompts), ("output_lens", outputs)):
        if not isinstance(column, list) or not column:
            raise TraceError(path, 1, "it must be a list: save the result with details", name)
        if not all(type(value) is int for value in column):
            raise TraceError(path, 1, "it must be a list of whole numbers", name)
    assert prompts is not None and outputs is not None
    starts = [0.0] * len(prompts) if starts is None else starts
    if not isinstance(starts, list) or not all(type(s) in (int, float) for s in starts):
        raise TraceError(path, 1, "it must be a list of seconds", "start_times")
    if not len(prompts) == len(outputs) == len(starts):
        raise TraceError(
            path, 1, f"{len(prompts)} input_lens, {len(outputs)} output_lens and {len(starts)} start_times"
        )
    if not all(map(math.isfinite, starts)):
        raise TraceError(path, 1, "an instant is not finite", "start_times")
    first_s, previous_s = min(starts), 0.0
    rows = sorted(zip(starts, prompts, outputs, strict=True), key=lambda row: row[0])
    for index, (start, *tokens) in enumerate(rows):
        request = TraceRequest(default_id(index), float(start - first_s), *tokens)
        _check(path, index + 1, request, previous_s)
        previous_s = request.arrival_s
        yield request


def _check(path: str, row: int, request: TraceRequest, previous_s: float) -> None:
    problems = (
        (arrival_problem(request.arrival_s, previous_s), "arrival"),
        (tokens_problem(request.num_prompt_tokens, "prompt"), "prompt tokens"),
        (tokens_problem(request.num_output_tokens, "output"), "output tokens"),
    )
    for reason, column in problems:
        if reason:
            raise TraceError(path, row, f"row {row}: {reason}", column)


def parse_result(path: str, text: bytes) -> dict[str, Any]:
    """The one JSON object of a result file."""
    values = decode(path, 1, text, TraceError)
    if not isinstance(values, dict):
        raise TraceError(path, 1, "it must be a JSON object")
    return values
