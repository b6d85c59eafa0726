"""Path of one request through the graph: messages about it, its waits, and its batches.

Three files are read: the journal twice, for the request's history and for the other requests of its batches,
and the messages beside it. Steps without news for the request are merged into one stop.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from sundog.sim.explain.history import History, RequestHistory, RunningSpan
from sundog.sim.explain.journal_reader import find_record, journal_header, journal_records, messages_beside
from sundog.sim.explain.load import find_request, load, refused_at_door
from sundog.sim.explain.phases import RequestPhase, wait_phases
from sundog.sim.explain.source import Code, Sources
from sundog.sim.files.lines import JsonLines, Row
from sundog.sim.files.run_files import CONFIG, JOURNAL, MESSAGES, SUMMARY, check_same_run
from sundog.sim.record.journal_rows import JournalError, JournalStep
from sundog.sim.record.run_directory import open_run


@dataclass(slots=True)
class OwnStep:
    """One step, or several in a row, that computed something of the request.

    `others` has for each request in the same step its computed prompt tokens, 0 for a decode.
    `num_held_tokens` are the request's tokens with a slot in its blocks afterwards.
    """

    step: int
    last_step: int
    start_s: float
    end_s: float
    num_prefilled: int
    num_decoded: int
    num_held_tokens: int
    others: dict[str, int]
    num_free_blocks: int
    num_hit_tokens: int | None = None
    """Prefix-hit tokens, in the step that admits the request."""

    @property
    def num_steps(self) -> int:
        return self.last_step - self.step + 1

    @property
    def kind(self) -> str:
        return "prefill" if self.num_prefilled else "decode" if self.num_decoded else "nothing"


@dataclass(slots=True)
class WalkStop:
    """Stop on the path: a message, if `message` is given, or else a wait, or merged steps."""

    time_s: float
    until_s: float
    sender: str = ""
    receiver: str = ""
    message: str = ""
    purpose: str = ""
    """Docstring of the message's class."""
    row: Row = field(default_factory=dict)
    sent: list[Code] = field(default_factory=list)
    handled: list[Code] = field(default_factory=list)
    step: OwnStep | None = None
    waited: list[RequestPhase] = field(default_factory=list)
    after: RunningSpan | None = None
    """Span of running before a wait, which a preemption ended."""


@dataclass(slots=True)
class Walk:
    """Request with its stops, in order of time; times are the journal's."""

    history: History
    request: RequestHistory
    stops: list[WalkStop]
    cut_off: list[Path]
    """Truncated files of the record, whose later contents are missing here."""

    @property
    def actors(self) -> list[str]:
        """Actors on the path, in order of first use."""
        names = (name for stop in self.stops for name in (stop.sender, stop.receiver) if name)
        return list(dict.fromkeys(names))

    @property
    def wires(self) -> list[tuple[str, str]]:
        """Pairs of sender and receiver, in order of first use."""
        return list(dict.fromkeys((stop.sender, stop.receiver) for stop in self.stops if stop.message))


def walk(run: Path, request_id: str) -> Walk:
    """Follow a request of a recorded run.

    Raises JournalError, with a remedy, if there are no messages or no such request.
    """
    record, messages = _files(run)
    history = load(record)
    if request_id not in history.requests and (refused := refused_at_door(run, request_id)) is not None:
        raise JournalError(
            f"{request_id} was refused at the door at {refused['arrival_s']:,.3f} s, and no engine received"
            f" it: {refused['refusal']}"
        )
    request = find_request(history.requests, request_id)
    steps = _own_steps(record, request_id)
    shown, folds = _folded(steps)
    lines = JsonLines(messages, JournalError.at)
    stops = _message_stops(lines, record, history, request, steps, shown)
    for fold in folds:
        _insert(stops, WalkStop(fold.start_s, fold.end_s, step=fold), fold.end_s)
    for wait, after in zip(request.waits, [None, *request.spans], strict=False):
        if phases := wait_phases(history, request, wait):
            start_s, end_s = phases[0].start_s, phases[-1].end_s
            _insert(stops, WalkStop(start_s, end_s, waited=phases, after=after), end_s)
    cut_off = [path for path, is_cut in ((record, history.cut_off), (messages, lines.cut_off)) if is_cut]
    return Walk(history, request, stops, cut_off)


def _insert(stops: list[WalkStop], stop: WalkStop, end_s: float) -> None:
    later = (place for place, each in enumerate(stops) if each.step and each.step.start_s >= end_s)
    stops.insert(next(later, len(stops)), stop)


def _files(run: Path) -> tuple[Path, Path]:
    server = "`sundog emulate … --record DIR --messages`, or `sundog serve` with these and --in-process"
    again = f"sundog replay {f'--config {quote(str(run / CONFIG))}' if (run / CONFIG).is_file() else '…'}"
    if (run / SUMMARY).is_file():
        recorded = open_run(run)
        if recorded.is_clients:
            raise JournalError(
                f"{run} was recorded by clients, without messages; record the server: {server}"
            )
        if recorded.changes_engines:
            find_record(run)  # There is none, and its error has the reason.
        if not (run / JOURNAL).is_file() or not (run / MESSAGES).is_file():
            raise JournalError(
                f"{run} has no messages; record them: `{again} --journal --messages --out {quote(str(run))}`"
            )
    record = find_record(run)
    if (messages := messages_beside(record)) is None:
        raise JournalError(f"{run} has no messages; record them: {server}")
    return record, messages


# --- its steps -----------------------------------------------------------------------------------

Steps = dict[tuple[int, int], OwnStep]
"""Steps by their replica and number."""


def _own_steps(record: Path, name: str) -> Steps:
    lines = JsonLines(record, JournalError.at)
    rows = iter(lines)
    journal_header(next(rows), lines)
    decoding: defaultdict[int, set[str]] = defaultdict(set)
    found: Steps = {}
    num_held = 0
    for step in journal_records(lines, rows):
        if not isinstance(step, JournalStep):
            continue
        decodes = decoding[step.replica]
        decodes.difference_update(each.request_id for each in step.preempted)
        batch = dict.fromkeys(sorted(decodes.difference(step.idle)), 0)
        batch |= {chunk.request_id: chunk.num_tokens for chunk in step.chunks}
        if name in batch or name in decodes:
            own = _own_step(step, name, batch, num_held)
            found[step.replica, step.step], num_held = own, own.num_held_tokens
        decodes.update(chunk.request_id for chunk in step.chunks if chunk.samples)
        decodes.difference_update(each.request_id for each in step.ended)
    return found


def _own_step(step: JournalStep, name: str, batch: dict[str, int], num_held: int) -> OwnStep:
    is_in, num_prefilled = name in batch, batch.pop(name, 0)
    hit = next((each.num_hit_tokens for each in step.admitted if each.request_id == name), None)
    ended = next((each.num_tokens for each in step.ended if each.request_id == name), None)
    num_decoded = len(step.ends_s) if ended is None else ended
    num_decoded += sum(each.num_accepted for each in step.drafts if each.request_id == name)
    num_decoded = 0 if num_prefilled or not is_in else num_decoded
    num_held = (num_held if hit is None else hit) + num_prefilled + num_decoded
    last, end_s = step.step + max(len(step.ends_s), 1) - 1, (step.start_s, *step.ends_s)[-1]
    return OwnStep(
        step.step,
        last,
        start_s=step.start_s,
        end_s=end_s,
        num_prefilled=num_prefilled,
        num_decoded=num_decoded,
        num_held_tokens=num_held,
        others=batch,
        num_free_blocks=step.num_free_blocks,
        num_hit_tokens=hit,
    )


def _folded(steps: Steps) -> tuple[Steps, list[OwnStep]]:
    shown: Steps = {}
    folds = []
    group: list[tuple[tuple[int, int], OwnStep]] = []
    for place, step in [*steps.items(), (None, None)]:
        if group and (step is None or step.num_hit_tokens is not None or step.kind != group[-1][1].kind):
            shown |= dict([group[0], group[-1]])
            if between := [each for _, each in group[1:-1]]:
                folds.append(_as_one(between))
            group = []
        if place is not None and step is not None:
            group.append((place, step))
    return shown, folds


def _as_one(steps: list[OwnStep]) -> OwnStep:
    others: dict[str, int] = {}
    for step in steps:
        for name, num_tokens in step.others.items():
            others[name] = others.get(name, 0) + num_tokens
    last = steps[-1]
    return replace(
        steps[0],
        last_step=last.last_step,
        end_s=last.end_s,
        num_prefilled=sum(step.num_prefilled for step in steps),
        num_decoded=sum(step.num_decoded for step in steps),
        num_held_tokens=last.num_held_tokens,
        others=others,
        num_free_blocks=last.num_free_blocks,
    )


# --- the messages --------------------------------------------------------------------------------


def _message_stops(
    lines: JsonLines, record: Path, history: History, request: RequestHistory, steps: Steps, shown: Steps
) -> list[WalkStop]:
    rows = iter(lines)
    header = next(rows, {})
    check_same_run(record, history.header.run, lines.path, header.get("run"))
    own = list[tuple[Row, OwnStep | None]]()
    for row in rows:
        place = _place(row)
        if place in shown or (place not in steps and named_in(row, request.request_id)):
            own.append((row, None if place is None else shown.get(place)))
    submitted_s = next((row.get("arrival_s", 0.0) for row, _ in own if row["message"] == "Submit"), None)
    if "origin" not in header or submitted_s is None:
        raise JournalError(f"{lines.path} lacks the arrival of {request.request_id}: record the run again")
    ahead_s = header["origin"] - (submitted_s - request.arrival.time_s)
    sources = Sources()
    stops = []
    for row, step in own:
        time_s, sender, receiver, kind = (row[key] for key in ("time", "from", "to", "message"))
        stops.append(
            WalkStop(
                time_s + ahead_s,
                time_s + ahead_s,
                sender=sender,
                receiver=receiver,
                message=kind,
                purpose=sources.message(kind),
                row={
                    key: value for key, value in row.items() if key not in ("time", "from", "to", "message")
                },
                sent=sources.sent_by(sender, kind),
                handled=sources.handled_by(receiver, kind),
                step=step,
            )
        )
    return stops


def _place(row: Row) -> tuple[int, int] | None:
    number = row.get("step", row.get("batch", {}).get("step"))
    engine = ENGINE.search(f"{row['from']} {row['to']}")
    return None if number is None else (row.get("replica", 0) if engine is None else int(engine[1]), number)


ENGINE = re.compile(r"-(\d+)")
"""Pattern of the engine's number in an actor's name."""


def named_in(row: Row, name: str) -> list[str]:
    """Return the fields of a message that name the request directly, not in nested records."""
    return [
        key
        for key, value in row.items()
        if (key == "request_id" and value == name)
        or (isinstance(value, list) and key != "idle" and any(map(partial(_is_of, name), value)))
    ]


def _is_of(name: str, item: Any) -> bool:
    if isinstance(item, dict):
        return bool(item.get("request_id") == name)
    return bool((item[0] if isinstance(item, list) and item else item) == name)
