"""Recorded run as a trace for Perfetto's or Chrome's viewer: one track per actor and per request.

Reads the output of `replay --out` and `serve --record`, so that a simulated and a real run look alike.
Format: the Trace Event Format of Chrome, JSON, times in microseconds.
"""

import gzip
import io
import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from sundog.actors.core.config import ConfigError
from sundog.sim.explain.history import History, RequestHistory
from sundog.sim.explain.journal_reader import find_record, journal_header, journal_records, messages_beside
from sundog.sim.explain.load import load
from sundog.sim.explain.phases import phases
from sundog.sim.files.lines import JsonLines
from sundog.sim.files.run_files import check_same_run, whole_file
from sundog.sim.record.journal_rows import JournalError, JournalStep

MOST_REQUESTS = 2_000
MOST_SLICES = 50_000
MOST_MESSAGES = 200_000


@dataclass(frozen=True, slots=True)
class Detail:
    """Part of a run to export: a span of its seconds, and a limit on requests."""

    from_s: float = 0.0
    to_s: float = math.inf
    num_requests: int = MOST_REQUESTS

    def holds(self, start_s: float, end_s: float) -> bool:
        """Return whether any of this time is included."""
        return start_s <= self.to_s and end_s >= self.from_s


WHOLE = Detail()


class Slice(NamedTuple):
    """Consecutive steps of one replica drawn as one, without a visible pause between them."""

    steps: tuple[JournalStep, ...]

    @property
    def start_s(self) -> float:
        return self.steps[0].start_s

    @property
    def end_s(self) -> float:
        return max(step.ends_s[-1] for step in self.steps)

    @property
    def num_steps(self) -> int:
        return sum(len(step.ends_s) for step in self.steps)


@dataclass(slots=True)
class Drawn:
    """Part of a run to draw; `left_out` describes the rest, in words."""

    detail: Detail
    requests: list[RequestHistory] = field(default_factory=list)
    steps_a_slice: int = 1
    pause_s: float = 0.0
    """Seconds of a pause that ends a slice."""
    left_out: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, history: History, detail: Detail) -> "Drawn":
        """Choose the slowest requests for half of the limit, and the rest evenly from the others."""
        drawn = cls(detail)
        there = [r for r in history.requests.values() if detail.holds(r.arrival.time_s, ended_s(r))]
        drawn.requests = chosen(there, detail.num_requests)
        if (num_missing := len(there) - len(drawn.requests)) > 0:
            which = "shown: the slowest, and a sample of the others"
            drawn.left_out.append(f"{num_missing:,} of {len(there):,} requests ({which})")
        if history.requests and not there:
            num_requests = len(history.requests)
            drawn.left_out.append(f"all {num_requests:,} requests (none runs in these seconds)")
        starts_s = [s for queue in history.queues.values() for s in queue.starts_s if detail.holds(s, s)]
        if len(starts_s) > MOST_SLICES:
            drawn.steps_a_slice = math.ceil(len(starts_s) / MOST_SLICES)
            drawn.pause_s = (max(starts_s) - min(starts_s)) / MOST_SLICES
            drawn.left_out.append(f"single steps (up to {drawn.steps_a_slice} batches are one slice)")
        return drawn

    def slices(self, steps: Iterable[JournalStep]) -> Iterator[Slice]:
        """Yield the included steps, of any replica, as slices in order of their ends."""
        open_: dict[int, list[JournalStep]] = {}
        for step in steps:
            if not step.ends_s or not self.detail.holds(step.start_s, step.ends_s[-1]):
                continue
            own = open_.setdefault(step.replica, [])
            if own and (len(own) == self.steps_a_slice or step.start_s > own[-1].ends_s[-1] + self.pause_s):
                yield Slice(tuple(own))
                own.clear()
            own.append(step)
        for own in open_.values():
            if own:
                yield Slice(tuple(own))


def ended_s(request: RequestHistory) -> float:
    """Return the time at which the request ended, or the record did."""
    if request.end_s is not None:
        return request.end_s
    last_s = request.spans[-1].end_s if len(request.spans) == len(request.waits) else request.waits[-1].end_s
    return request.arrival.time_s if last_s is None else last_s


def chosen(requests: list[RequestHistory], most: int) -> list[RequestHistory]:
    """Return at most `most` requests, in their order: the slowest half, and the others evenly."""
    if len(requests) <= most:
        return requests
    by_time = sorted(
        range(len(requests)), key=lambda n: (requests[n].arrival.time_s - ended_s(requests[n]), n)
    )
    slowest, others = by_time[: most - most // 2], sorted(by_time[most - most // 2 :])
    evenly = [others[number * len(others) // (most // 2)] for number in range(most // 2)]
    return [requests[number] for number in sorted({*slowest, *evenly})]


Event = dict[str, Any]
ENGINE, REQUESTS, ACTORS = 1, 2, 3
"""Process ids: Perfetto groups tracks by them."""


class Exported(NamedTuple):
    """Number of written events, and a description of what was left out."""

    num_events: int
    left_out: tuple[str, ...]


def export(directory: Path, output: Path, detail: Detail = WHOLE) -> Exported:
    """Write the trace, gzipped if the name ends in .gz, whole or not at all.

    Raises JournalError for a record that cannot be read, ConfigError if the file cannot be written.
    """
    record = find_record(directory)
    history = load(record)
    drawn, num_events = Drawn.of(history, detail), 0
    try:
        with _open(output) as file:
            file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
            for event in _events(record, history, drawn):
                file.write((",\n" if num_events else "") + json.dumps(event, separators=(",", ":")))
                num_events += 1
            file.write("\n]}\n")
    except OSError as error:
        raise ConfigError(f"cannot write {output}: {error.strerror or error}") from None
    return Exported(num_events, tuple(drawn.left_out))


@contextmanager
def _open(path: Path) -> Iterator[TextIO]:
    with whole_file(path) as raw:
        if path.suffix != ".gz":
            with io.TextIOWrapper(raw, encoding="utf-8") as file:
                yield file
            return
        # No time stamp or name inside, so that equal traces are equal files.
        with (
            gzip.GzipFile("", "wb", 3, raw, mtime=0) as zipped,
            io.TextIOWrapper(zipped, encoding="utf-8") as file,
        ):
            yield file


def _events(record: Path, history: History, drawn: Drawn) -> Iterator[Event]:
    for number, name in ((ENGINE, "engine"), (REQUESTS, "requests"), (ACTORS, "actors")):
        yield {"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}}
    yield from _steps(record, drawn)
    yield from _requests(history, drawn)
    if (messages := messages_beside(record)) is not None:
        yield from _messages(messages, record, history.header.run, drawn)


def _us(time_s: float) -> float:
    return round(time_s * 1e6, 3)


def _steps(record: Path, drawn: Drawn) -> Iterator[Event]:
    lines = JsonLines(record, JournalError.at)
    rows = iter(lines)
    journal_header(next(rows), lines)
    named: set[int] = set()
    steps = (step for step in journal_records(lines, rows) if isinstance(step, JournalStep))
    for piece in drawn.slices(steps):
        last = piece.steps[-1]
        track = last.replica
        if track not in named:
            named.add(track)
            args = {"name": f"scheduler-{track}"}
            yield {"ph": "M", "name": "thread_name", "pid": ENGINE, "tid": track, "args": args}
        at = {"pid": ENGINE, "tid": track, "ts": _us(piece.start_s)}
        yield {
            **at,
            "ph": "X",
            "name": _name(piece),
            # Of rounded ends: a slice that reaches a nanosecond into the next hides it in the viewer.
            "dur": round(_us(piece.end_s) - _us(piece.start_s), 3),
            "args": {
                "step": piece.steps[0].step,
                "steps": piece.num_steps,
                "admitted": [admitted.request_id for step in piece.steps for admitted in step.admitted],
                "preempted": [preempted.request_id for step in piece.steps for preempted in step.preempted],
                "ended": [ended.request_id for step in piece.steps for ended in step.ended],
            },
        }
        for name, value in (("free blocks", last.num_free_blocks), ("decoding", last.num_decodes)):
            counted = {"ph": "C", "name": f"{name} {track}", "args": {name: value}}
            yield {**at, **counted}


def _name(piece: Slice) -> str:
    prefill = sum(chunk.num_tokens for step in piece.steps for chunk in step.chunks)
    most_decodes = max(step.num_decodes for step in piece.steps)
    parts = [f"{prefill} prefill"] if prefill else []
    parts += [f"{most_decodes} decode"] if most_decodes else []
    number = f"{len(piece.steps)} batches: " if len(piece.steps) > 1 else ""
    return number + (" + ".join(parts) or "no tokens")


def _requests(history: History, drawn: Drawn) -> Iterator[Event]:
    for request in drawn.requests:
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


def _messages(path: Path, record: Path, run_id: str | None, drawn: Drawn) -> Iterator[Event]:
    tracks: dict[str, int] = {}
    rows = iter(JsonLines(path, JournalError.at))
    check_same_run(record, run_id, path, next(rows, {}).get("run"))
    wanted = (row for row in rows if drawn.detail.holds(row["time"], row["time"]))
    for number, row in enumerate(wanted):
        if number == MOST_MESSAGES:
            drawn.left_out.append(f"messages from {row['time']:,.3f} s on")
            return
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
