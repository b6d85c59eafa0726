"""How often drafts were proposed and accepted in a recorded run, from its journal."""

from pathlib import Path

from sim.explain.journal_reader import find_record, journal_header, journal_records
from sim.files.json_lines import JsonLines
from sim.record.journal_rows import JournalError, Step

Rates = tuple[float, ...]


def measured_drafts(path: Path, num_tokens: int) -> tuple[Rates, Rates]:
    """For each position, how often drafts up to there were proposed and accepted.

    Proposed of all tokens that a request decoded from, accepted of the times that it had any draft. Raises
    JournalError where the record has none, or none for that many positions.
    """
    lines = JsonLines(find_record(path), JournalError.at)
    rows = iter(lines)
    first = next(rows, None)
    if first is None or "journal" not in first:
        raise JournalError(f"{lines.path} is no journal: record one with `sundog serve … --record DIR`")
    journal_header(first, lines)
    num_decodes, proposed, accepted = 0, list[int](), list[int]()
    for record in journal_records(lines, rows):
        if not isinstance(record, Step):
            continue
        num_decodes += record.num_decodes * len(record.ends_s)
        for drafted in record.drafts:
            _count(proposed, drafted.num_drafts)
            _count(accepted, drafted.num_accepted)
    if len(proposed) < num_tokens:
        has = f"at most {len(proposed)} drafts a step" if proposed else "no drafts"
        raise JournalError(f"{lines.path} has {has}: num_speculative_tokens cannot be {num_tokens} there")
    accepted += [0] * (num_tokens - len(accepted))
    return (
        tuple(count / num_decodes for count in proposed[:num_tokens]),
        tuple(count / proposed[0] for count in accepted[:num_tokens]),
    )


def _count(positions: list[int], number: int) -> None:
    """One more for each of the first positions."""
    positions += [0] * (number - len(positions))
    for position in range(number):
        positions[position] += 1
