"""Loading of a recorded run's history from a path."""

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from sundog.actors.config.speculative import MeasuredRates, Rates
from sundog.actors.core.names import did_you_mean
from sundog.sim.explain.history import History, HistoryError, RequestHistory
from sundog.sim.explain.journal_reader import check_run, find_record, journal_header, journal_records
from sundog.sim.files.lines import JsonLines
from sundog.sim.files.run_files import REQUESTS
from sundog.sim.record.journal_rows import Drafted, JournalError, JournalStep
from sundog.sim.record.run_directory import open_run


def load(path: Path) -> History:
    """Return the history of a journal, or of the directory that holds it.

    Raises JournalError that names the file, the line and the reason.
    """
    lines = JsonLines(find_record(path), JournalError.at)
    rows = iter(lines)
    first = next(rows, None)
    if first is None:
        raise JournalError(f"{lines.path} is empty")
    if "journal" not in first:
        raise lines.error("not a journal of Sundog: record one with `sundog replay … --out DIR`")
    history = History(journal_header(first, lines))
    check_run(lines.path, history.header)
    for record in journal_records(lines, rows):
        try:
            history.observe(record)
        except HistoryError as error:
            raise lines.error(str(error)) from None
    history.end()
    history.cut_off = lines.cut_off
    return history


def find_request(requests: Mapping[str, RequestHistory], request_id: str) -> RequestHistory:
    """Return the request with this id; raises JournalError that suggests ids that contain it, or the
    nearest.
    """
    if request_id not in requests:
        near = list(islice((name for name in requests if request_id and request_id in name), 3))
        hint = f" Did you mean {', '.join(near)}?" if near else did_you_mean(request_id, requests, most=3)
        raise JournalError(f"none of the {len(requests):,} recorded requests is called {request_id!r}.{hint}")
    return requests[request_id]


def refused_at_door(record: Path, request_id: str) -> dict[str, Any] | None:
    """Return the request if the run in the folder refused it before any engine; O(requests)."""
    if not (record / REQUESTS).is_file():
        return None
    import pyarrow.compute as pc

    requests = open_run(record).requests()
    if "refusal" not in requests.column_names:
        return None
    names = ("request_id", "arrival_s", "num_prompt_tokens", "tenant", "refusal")
    found = requests.filter(pc.equal(requests["request_id"], request_id)).select(names).to_pylist()
    return next((row | {"reason": "refused"} for row in found if row["refusal"] is not None), None)


def measured_drafts(path: Path, num_tokens: int) -> dict[str, MeasuredRates]:
    """Count for each request and position how often drafts up to it were proposed, and accepted.

    Over all decodes of the request; requests without decodes are left out. Raises JournalError if the record
    has no drafts, or none for that many positions.
    """
    lines = JsonLines(find_record(path), JournalError.at)
    rows = iter(lines)
    first = next(rows, None)
    if first is None or "journal" not in first:
        raise JournalError(f"{lines.path} is no journal: record one with `sundog serve … --record DIR`")
    history, drafts = History(journal_header(first, lines)), dict[str, list[Drafted]]()
    for record in journal_records(lines, rows):
        history.observe(record)
        if isinstance(record, JournalStep):
            for drafted in record.drafts:
                drafts.setdefault(drafted.request_id, []).append(drafted)
    history.end()
    most = max((each.num_drafts for own in drafts.values() for each in own), default=0)
    if most < num_tokens:
        has = f"at most {most} drafts a step" if most else "no drafts"
        raise JournalError(f"{lines.path} has {has}: num_speculative_tokens cannot be {num_tokens} there")
    found = {}
    for name, request in history.requests.items():
        own = drafts.get(name, [])
        num_decodes = request.num_output_tokens - sum(each.num_accepted for each in own) - len(request.spans)
        if num_decodes > 0:
            sampled = [each.num_sampled for each in own]
            found[name] = MeasuredRates(
                _rates([each.num_drafts for each in own], num_decodes, num_tokens),
                _rates(sampled, num_decodes, num_tokens),
                num_decodes,
                num_decodes + sum(sampled),
            )
    return found


def _rates(counts: list[int], num_decodes: int, num_tokens: int) -> Rates:
    positions = range(1, num_tokens + 1)
    return tuple(sum(count >= position for count in counts) / num_decodes for position in positions)
