"""How often drafts were proposed and accepted in a recorded run, from its journal."""

from pathlib import Path

from actors.config.speculative import Rates
from sim.explain.history import History
from sim.explain.journal_reader import find_record, journal_header, journal_records
from sim.files.lines import JsonLines
from sim.record.journal_rows import Drafted, JournalError, Step


def measured_drafts(path: Path, num_tokens: int) -> dict[str, tuple[Rates, Rates]]:
    """Of each request and for each position, how often drafts up to there were proposed, and accepted.

    Of all times that the request decoded; those that never did are left out. Raises JournalError where the
    record has no drafts, or none for that many positions.
    """
    lines = JsonLines(find_record(path), JournalError.at)
    rows = iter(lines)
    first = next(rows, None)
    if first is None or "journal" not in first:
        raise JournalError(f"{lines.path} is no journal: record one with `sundog serve … --record DIR`")
    history, drafts = History(journal_header(first, lines)), dict[str, list[Drafted]]()
    for record in journal_records(lines, rows):
        history.observe(record)
        if isinstance(record, Step):
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
            found[name] = (
                _rates([each.num_drafts for each in own], num_decodes, num_tokens),
                _rates([each.num_accepted for each in own], num_decodes, num_tokens),
            )
    return found


def _rates(counts: list[int], num_decodes: int, num_tokens: int) -> Rates:
    positions = range(1, num_tokens + 1)
    return tuple(sum(count >= position for count in counts) / num_decodes for position in positions)
