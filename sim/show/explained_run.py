"""Page of a whole run: the causes of waiting, the longest waits, preemptions, suggestions."""

from collections import Counter
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sundog.sim.explain.findings import UNANSWERED, Findings, WorstWait
from sundog.sim.figures.engine import SpeculationFigures
from sundog.sim.show import words
from sundog.sim.show.console import print_table, table_of

NOBODY: Mapping[str, int] = {}
MOST_REQUESTS = 5
"""Maximum number of requests to list: of those preempted most often, and of those that caused it."""


def print_run(console: Console, title: str, found: Findings, at_door: Mapping[str, int] = NOBODY) -> None:
    """Print the page of a run; `at_door` counts, by reason, requests refused before any engine."""
    unfinished = f", {found.num_unfinished:,} unfinished" if found.num_unfinished else ""
    lost = "".join(f", {count:,} {UNANSWERED[reason]}" for reason, count in sorted(found.unanswered.items()))
    console.print(
        f"{title}: {words.count(found.num_requests, 'request')}{lost}{unfinished},"
        f" {words.count(found.num_steps, 'step')}",
        style="bold",
        markup=False,
    )
    total_s = found.causes.total_s
    share = total_s / found.spent_s if found.spent_s else 0.0
    console.print(
        f"All requests together waited {words.length(total_s)},"
        f" {share:.1%} of the time from arrival to end;"
        f" {words.length(found.causes.own_turn_s)} of it as the next in the queue.",
        markup=False,
    )
    if found.refusals:
        console.print(
            f"The policy refused {words.count(found.refusals.total(), 'request')}: {_often(found.refusals)}.",
            markup=False,
        )
    if at_door:
        refused = Counter({words.shortened(reason): count for reason, count in at_door.items()})
        what = words.count(refused.total(), "request")
        console.print(f"{what} refused before any engine: {_often(refused)}.", markup=False)
    if total_s:
        print_table(console, _causes(found))
        print_table(console, _worst(found.worst))
    for line in _passed(found):
        console.print(line, markup=False)
    for line in _preemptions(found):
        console.print(line, markup=False)
    if (drafts := SpeculationFigures.of(found.drafts)) is not None:
        console.print(f"Drafts: {words.drafts(drafts)}.", markup=False)
    for text in found.suggestions:
        table = Table.grid(padding=(0, 1))
        table.add_row("→", Text(text))
        console.print(table)


def _causes(found: Findings) -> Table:
    table = table_of("what the next in the queue lacked", "waited", "share", "requests")
    total_s = found.causes.total_s
    for reason, seconds in found.causes.ordered:
        table.add_row(
            Text(reason),
            words.length(seconds),
            f"{seconds / total_s:.1%}",
            f"{found.causes.num_requests[reason]:,}",
        )
    return table


def _worst(worst: list[WorstWait]) -> Table:
    table = table_of("longest waits", "from", "waited")
    table.columns[0].no_wrap = True
    table.add_column("lacking")
    table.add_column("longest next in the queue")
    for entry in worst:
        again = "" if entry.wait is entry.request.waits[0] else " (again)"
        reasons = ", ".join(
            f"{reason} {seconds / entry.seconds:.0%}"
            for reason, seconds in list(entry.by_reason.items())[:3]
            if seconds >= entry.seconds / 100
        )
        who = "itself" if entry.longest_head == entry.request.request_id else entry.longest_head
        head = "" if who is None else f"{who}, {words.length(entry.longest_head_s)}"
        table.add_row(
            Text(entry.request.request_id + again),
            words.moment(entry.wait.start_s),
            words.length(entry.seconds),
            Text(reasons),
            Text(head),
        )
    return table


def _passed(found: Findings) -> list[str]:
    most = max(found.worst, key=lambda entry: len(entry.passed_by), default=None)
    if most is None or not most.passed_by:
        return []
    num = sum(bool(entry.passed_by) for entry in found.worst)
    return [
        f"Of the {words.count(len(found.worst), 'longest wait')}, {num} were prolonged by the policy:"
        f" while {most.request.request_id} waited, {words.passed_by(most.passed_by)}."
    ]


def _preemptions(found: Findings) -> list[str]:
    p = found.preemptions
    if not p.num:
        return ["No request was preempted."]
    own = f", {p.num_self:,} of them by their own growth" if p.num_self else ""
    waste = p.recomputed_tokens / (p.computed_tokens or 1)
    lines = [
        f"{words.count(p.num, 'preemption')} of {words.count(len(p.victims), 'request')}{own};"
        f" {p.recomputed_tokens:,} tokens computed again ({waste:.1%} of all computed),"
        f" {p.rehit_tokens:,} found again in the prefix cache.",
        f"Most often preempted: {_often(p.victims)}.",
    ]
    if p.for_requests:
        lines.append(f"Most often for: {_often(p.for_requests)}.")
    return lines


def _often(counts: Counter[str]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MOST_REQUESTS]
    return ", ".join(f"{name} ({number:,} ×)" for name, number in ordered)
