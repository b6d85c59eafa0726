"""`sundog explain`: a record as a page or JSON."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sundog.ends import remark
from sundog.options.row import AnyText, Switch, Whole, option
from sundog.options.takes import command, takes

if TYPE_CHECKING:
    from sundog.sim.explain.history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainOptions:
    """Options that select the parts of a record to explain."""

    request_id: str | None = option(
        None, AnyText("ID"), "Show this request alone, in full.", flag="--request"
    )
    top: int = option(10, Whole(0, 2**20), "Show this many of the longest waits.")
    every: bool = option(False, Switch(pair=False), "Show each change of cause of a long wait.", flag="--all")
    as_json: bool = option(False, Switch(pair=False), "Print the results as JSON.", flag="--json")


@command
@takes(ExplainOptions)
@click.argument("record", type=click.Path(path_type=Path))
def explain(asked: ExplainOptions, record: Path) -> None:
    """Explain why requests waited or were preempted.

    RECORD is a folder of `replay --out` or `serve --record`, or the journal in it.
    """
    from sundog.sim.explain.journal_reader import find_record
    from sundog.sim.explain.load import load
    from sundog.sim.files.run_files import JOURNAL

    history = load(record)
    if history.cut_off:
        remark(f"{record} is a part of a run: it breaks off at {history.until_s:,.3f} s")
    if asked.request_id is None:
        path = find_record(record)
        is_only = path.name == JOURNAL or path == record
        name = record.name if is_only else f"{record.name}, {path.name}"
        _run(history, name, asked, record)
    elif asked.request_id in history.requests or not _turned_away(record, asked):
        _request(history, asked.request_id, asked)


def _turned_away(record: Path, asked: ExplainOptions) -> bool:
    from sundog.sim.explain.load import refused_at_door

    assert asked.request_id is not None
    found = refused_at_door(record, asked.request_id)
    if found is not None:
        name, arrival_s, refusal = (found[key] for key in ("request_id", "arrival_s", "refusal"))
        text = f"Request {name} arrived at {arrival_s:,.3f} s and was refused at the door: {refusal}"
        click.echo(json.dumps(found, indent=1) if asked.as_json else text)
    return found is not None


def _request(history: "History", request_id: str, asked: ExplainOptions) -> None:
    from sundog.sim.explain.data import request_data
    from sundog.sim.explain.load import find_request
    from sundog.sim.show.console import console_for
    from sundog.sim.show.explained_request import RequestPage

    request = find_request(history.requests, request_id)
    if asked.as_json:
        click.echo(json.dumps(request_data(history, request), indent=1))
    else:
        RequestPage(history, request, every=asked.every).print(console_for())


def _run(history: "History", name: str, asked: ExplainOptions, record: Path) -> None:
    from sundog.library.questions import explained
    from sundog.sim.explain.data import run_data
    from sundog.sim.show.console import console_for
    from sundog.sim.show.explained_run import print_run

    found, at_door = explained(history, record, asked.top)
    if asked.as_json:
        more = {"refused_at_the_door": at_door} if at_door else {}
        click.echo(json.dumps(run_data(found) | more, indent=1))
    else:
        print_run(console_for(), name, found, at_door)
