"""A recorded run as a trace for Perfetto's or Chrome's viewer: one track per actor and per request.

Reads what `replay --out` and `serve --record` wrote, so that a simulated and a real run look alike.
Format: the Trace Event Format of Chrome, JSON, instants in microseconds.
"""

import gzip
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from actors.core.config import ConfigError
from sim.explain.history import History
from sim.explain.journal_reader import find_record, journal_header, journal_records
from sim.explain.load import load
from sim.explain.phases import phases
from sim.files.json_lines import JsonLines
from sim.files.run_files import check_same_run
from sim.record.journal_rows import JournalError, Step

Event = dict[str, Any]
ENGINE, REQUESTS, ACTORS = 1, 2, 3
"""Process ids: Perfetto groups tracks by them."""


def export(directory: Path, output: Path) -> int:
    """Write the trace, gzipped if the name ends in .gz; the number of its events.

    Raises JournalError for a record that cannot be read, ConfigError if the file cannot be written.
    """
    record = find_record(directory)
    history = load(record)
    if history.header.unit != "s":
        raise ConfigError(f"{record} counts {history.header.unit}s: record a run, which has times")
    num_events = 0
    try:
        with _open(output) as file:
            file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
            for event in _events(record, history):
                file.write((",\n" if num_events else "") + json.dumps(event, separators=(",", ":")))
                num_events += 1
            file.write("\n]}\n")
    except OSError as error:
        raise ConfigError(f"cannot write {output}: {error.strerror or error}") from None
    return num_events


@contextmanager
def _open(path: Path) -> Iterator[TextIO]:
    if path.suffix != ".gz":
        with path.open("w", encoding="utf-8") as file:
            yield file
        return
    # No time stamp or name inside, so that equal traces are equal files.
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", 3, raw, mtime=0) as zipped,
        io.TextIOWrapper(zipped, encoding="utf-8") as file,
    ):
        yield file


def _events(record: Path, history: History) -> Iterator[Event]:
    for number, name in ((ENGINE, "engine"), (REQUESTS, "requests"), (ACTORS, "actors")):
        yield {"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}}
    yield from _steps(record)
    yield from _requests(history)
    messages = record.with_name(record.name.replace("journal", "messages", 1))
    if messages != record and messages.is_file():
        yield from _messages(messages, record, history.header.run)


def _us(time_s: float) -> float:
    return round(time_s * 1e6, 3)


def _steps(record: Path) -> Iterator[Event]:
    """A slice for each step or run of steps, and counters of blocks and decoding requests."""
    lines = JsonLines(record, JournalError.at)
    rows = iter(lines)
    journal_header(next(rows), lines)
    named: set[int] = set()
    for step in journal_records(lines, rows):
        if not isinstance(step, Step):
            continue
        track = step.replica
        if track not in named:
            named.add(track)
            args = {"name": f"scheduler-{track}"}
            yield {"ph": "M", "name": "thread_name", "pid": ENGINE, "tid": track, "args": args}
        prefill = sum(chunk.num_tokens for chunk in step.chunks)
        parts = [f"{prefill} prefill"] if prefill else []
        parts += [f"{step.num_decodes} decode"] if step.num_decodes else []
        at = {"pid": ENGINE, "tid": track, "ts": _us(step.start_s)}
        yield {
            **at,
            "ph": "X",
            "name": " + ".join(parts) or "no tokens",
            "dur": _us(step.ends_s[-1] - step.start_s),
            "args": {
                "step": step.step,
                "steps": len(step.ends_s),
                "admitted": [admitted.request_id for admitted in step.admitted],
                "preempted": [preempted.request_id for preempted in step.preempted],
                "ended": [ended.request_id for ended in step.ended],
            },
        }
        for name, value in (("free blocks", step.num_free_blocks), ("decoding", step.num_decodes)):
            counted = {"ph": "C", "name": f"{name} {track}", "args": {name: value}}
            yield {**at, **counted}


def _requests(history: History) -> Iterator[Event]:
    """A track for each request, and on it what it did and what it waited for."""
    for request in history.requests.values():
        own = {"cat": "request", "pid": REQUESTS, "tid": 0, "id": request.request_id}
        found = phases(history, request)
        if not found:
            continue
        args = {
            "prompt tokens": request.arrival.num_prompt_tokens,
            "replica": request.replica,
            "tenant": request.arrival.tenant,
        }
        start, end = _us(found[0].start_s), _us(found[-1].end_s)
        yield {**own, "ph": "b", "name": request.request_id, "ts": start, "args": args}
        for phase in found:
            name = phase.kind if phase.reason is None else f"{phase.kind}: {phase.reason}"
            yield {**own, "ph": "b", "name": name, "ts": _us(phase.start_s)}
            yield {**own, "ph": "e", "name": name, "ts": _us(phase.end_s)}
        yield {**own, "ph": "e", "name": request.request_id, "ts": end}


def _messages(path: Path, record: Path, run_id: str | None) -> Iterator[Event]:
    """Each message as an instant on the track of the actor that got it; of the record's run."""
    tracks: dict[str, int] = {}
    rows = iter(JsonLines(path, JournalError.at))
    check_same_run(record, run_id, path, next(rows, {}).get("run"))
    for row in rows:
        receiver = row.pop("to")
        if receiver not in tracks:
            tracks[receiver] = len(tracks)
            args = {"name": receiver}
            track = tracks[receiver]
            yield {"ph": "M", "name": "thread_name", "pid": ACTORS, "tid": track, "args": args}
        yield {
            "ph": "i",
            "s": "t",
            "name": row.pop("message"),
            "pid": ACTORS,
            "tid": tracks[receiver],
            "ts": _us(row.pop("time")),
            "args": row,
        }
