"""Reader of a recorded run: lines of a journal become a header, arrivals and steps.

Input is refused, never repaired: a malformed line is an error that names file, line and reason. A file that
breaks off, because its run is still going on or was killed, is read up to there.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from shlex import quote
from typing import Any, cast, get_args

from sundog.actors.core.batch import Blocked, Chunk, Lack
from sundog.sim.files.lines import JsonLines, Row
from sundog.sim.files.run_files import JOURNAL, SUMMARY, check_same_run, last_number, numbered
from sundog.sim.record.journal_rows import (
    BROKEN_OFF,
    VERSION,
    Admitted,
    Arrival,
    Chosen,
    Drafted,
    Header,
    JournalEnd,
    JournalError,
    JournalStep,
    Lost,
    Preempted,
    Rank,
)
from sundog.sim.record.run_directory import open_run

Record = Arrival | JournalStep | Lost | Chosen


def find_record(path: Path) -> Path:
    """Return the file to read: `path` itself, or the journal in it, the latest of a server.

    Raises JournalError if there is none.
    """
    if path.is_dir():
        number = last_number(path)
        found = path / (numbered(JOURNAL, number) if number else JOURNAL)
        if not found.is_file() and (path / SUMMARY).is_file():
            if open_run(path).changes_engines:
                raise JournalError(
                    f"{path} has no {JOURNAL}, because its requests change engines, between pools or by moves"
                    f" of the router: `sundog report {quote(str(path))}` shows the run"
                )
            raise JournalError(
                f"{path} has no {JOURNAL}: a long replay keeps one with --journal; clients have none, and why"
                " a request waited is known to the server alone: `sundog serve --record DIR`"
            )
        if not found.is_file():
            raise JournalError(
                f"{path} has no {JOURNAL}: record a run with `sundog replay … --out {quote(str(path))}`"
                f" or `sundog serve … --record {quote(str(path))}`"
            )
        return found
    if not path.exists():
        raise JournalError(f"{path} does not exist")
    return path


def messages_beside(record: Path) -> Path | None:
    """Return the file of messages that belongs to a journal, None if there is none."""
    path = record.with_name(record.name.replace("journal", "messages", 1))
    return path if path != record and path.is_file() else None


def journal_header(row: Row, lines: JsonLines) -> Header:
    """Parse the first line of a journal."""
    if row["journal"] != VERSION:
        raise lines.error(f"journal version {row['journal']!r}: this program reads {VERSION}")
    known = {field.name for field in fields(Header)}
    values = {name: value for name, value in row.items() if name in known}
    for name, value in values.items():
        expected: type = str if name in ("policy", "router", "run") else int
        if value is not None and type(value) is not expected:
            raise lines.error(f"{name} is {value!r}")
    return Header(**values)


def check_run(record: Path, header: Header) -> None:
    """Raise RunError unless the journal in a run's folder belongs to that run."""
    if record.name == JOURNAL and (record.parent / SUMMARY).is_file():
        summary_id = open_run(record.parent).run_id
        check_same_run(record.parent / SUMMARY, summary_id, record, header.run)


def journal_records(lines: JsonLines, rows: Iterator[Row]) -> Iterator[Record]:
    """Yield the arrivals and steps of the lines after the header."""
    for row in rows:
        if BROKEN_OFF in row:
            lines.cut_off = True
            continue
        try:
            yield _record(row)
        except KeyError as error:
            raise lines.error(f"the field {error.args[0]!r} is missing") from None
        except (ValueError, TypeError) as error:
            raise lines.error(str(error)) from None


def _record(row: Row) -> Record:
    for key, reader in READERS.items():
        if key in row:
            return reader(row)
    return _step(row)


def _chosen(row: Row) -> Chosen:
    num_requests, fewest, most = map(_count, _parts(row["requests"], 3))
    blocks: list[int | None] = [None, None]
    if "blocks" in row:
        blocks = [_count(each) for each in _parts(row["blocks"], 2)]
    return Chosen(
        tuple(map(_text, _list(row["routed"]))),
        replica=_count(row["replica"]),
        num_up=_count(row["up"]),
        num_requests=num_requests,
        fewest_requests=fewest,
        most_requests=most,
        num_hit_blocks=blocks[0],
        most_other_hit_blocks=blocks[1],
    )


def _arrival(row: Row) -> Arrival:
    tenant = row.get("tenant")
    return Arrival(
        _text(row["submit"]),
        _time(row["arrival"]),
        num_prompt_tokens=_count(row["prompt"]),
        max_tokens=_count(row["max_tokens"]),
        priority=_whole(row.get("priority", 0)),
        tenant=None if tenant is None else _text(tenant),
    )


def _lost(row: Row) -> Lost:
    lost, ended = (tuple(map(_text, _list(each))) for each in (row["lost"], row.get("ended", [])))
    return Lost(_count(row["replica"]), _time(row["at"]), lost, ended)


READERS: dict[str, Callable[[Row], Record]] = {"submit": _arrival, "lost": _lost, "routed": _chosen}
"""Functions that read lines other than steps, by a key that only such lines have."""


def _lack(value: Any) -> Lack:
    if value not in get_args(Lack):
        raise ValueError(f"{value!r} is no reason to wait")
    return cast(Lack, value)


def _step(row: Row) -> JournalStep:
    start_s, ends_s = _time(row["start"]), tuple(map(_time, _list(row["ends"])))
    if any(b < a for a, b in zip((start_s, *ends_s), ends_s, strict=False)):
        raise ValueError("time goes back")
    blocked = row.get("blocked")
    if blocked is not None:
        name, reason = _parts(blocked, 2)
        blocked = Blocked(_text(name), _lack(reason))
    planned_free = row.get("planned_free")
    refused = row.get("refused", {})
    if type(refused) is not dict:
        raise ValueError(f"{refused!r} is no object")

    def ended(name: Any, reason: Any, num_tokens: Any) -> JournalEnd:
        why = refused.get(_text(name))
        return JournalEnd(name, _text(reason), _count(num_tokens), None if why is None else _text(why))

    reached = row.get("reached", {})
    if type(reached) is not dict:
        raise ValueError(f"{reached!r} is no object")
    return JournalStep(
        step=_count(row["step"]),
        start_s=start_s,
        ends_s=ends_s,
        num_free_blocks=_count(row["free"]),
        replica=_count(row.get("replica", 0)),
        num_decodes=_count(row.get("decodes", 0)),
        admitted=_each(row, "admitted", 4, _admitted),
        chunks=_each(row, "chunks", 3, lambda a, b, c: Chunk(_text(a), _count(b), bool(_count(c)))),
        idle=tuple(map(_text, _list(row.get("idle", [])))),
        preempted=_each(row, "preempted", 2, _preempted),
        ended=_each(row, "ended", 3, ended),
        blocked=blocked,
        ranks=_each(row, "ranks", 2, lambda name, rank: (_text(name), _rank(rank))),
        drafts=_drafts(row),
        num_free_blocks_planned=None if planned_free is None else _count(planned_free),
        reached_s=tuple((_text(name), _time(time_s)) for name, time_s in reached.items()),
    )


def _rank(value: Any) -> Rank:
    if type(value) is list:
        return tuple(map(_rank, value))
    if type(value) is str and value in ("inf", "-inf"):
        return float(value)
    return _text(value) if type(value) is str else _time(value)


def _drafts(row: Row) -> tuple[Drafted, ...]:
    found = []
    for item in _list(row.get("drafts", [])):
        name, *counts = _parts(item, 4 if len(_list(item)) == 4 else 3)
        found.append(Drafted(_text(name), *map(_count, counts)))
    return tuple(found)


def _admitted(name: Any, num_tokens: Any, num_hit_tokens: Any, resumed: Any) -> Admitted:
    return Admitted(_text(name), _count(num_tokens), _count(num_hit_tokens), bool(_count(resumed)))


def _preempted(name: Any, for_request: Any) -> Preempted:
    if for_request is None:
        return Preempted(_text(name), None, "prefix-cache reset")
    return Preempted(_text(name), _text(for_request))


def _each(row: Row, field: str, size: int, make: Callable[..., Any]) -> tuple[Any, ...]:
    rows = row.get(field)
    return () if rows is None else tuple(make(*_parts(item, size)) for item in _list(rows))


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise ValueError(f"{value!r} is not a list")
    return value


def _parts(value: Any, size: int) -> list[Any]:
    if len(_list(value)) != size:
        raise ValueError(f"{value!r} has not {size} parts")
    return list(value)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{value!r} is not a string")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _count(value: Any) -> int:
    if _whole(value) < 0:
        raise ValueError(f"{value!r} is negative")
    return int(value)


def _time(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a time in seconds")
    return float(value)
