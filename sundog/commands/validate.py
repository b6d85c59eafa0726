"""`sundog validate`: predicted and real figures side by side."""

from dataclasses import dataclass
from pathlib import Path

import click

from sundog.actors.core.config import ConfigError
from sundog.ends import check_writable, remark, writing
from sundog.options.row import AnyText, Switch, option
from sundog.options.takes import command, takes

OWN = Path(__file__).parents[2] / "sim" / "validation" / "servers"
"""Records that come with Sundog."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateOptions:
    """Options of the predictions, and of their output."""

    as_json: bool = option(False, Switch(pair=False), "Print the results as JSON.", flag="--json")
    cost: str = option("auto", AnyText("COST"), "tables, roofline or auto.")
    host_overhead: bool = option(True, Switch(), "Time that the host adds to each step and request.")
    page: str | None = option(
        None, AnyText("FILE", is_path=True), "Write the accuracy page there, in Markdown."
    )


@command
@takes(ValidateOptions)
@click.argument("source", required=False, metavar="[DIR]")
def validate(asked: ValidateOptions, source: str | None) -> None:
    """Compare predictions with measurements of real servers.

    DIR holds records of servers (docs/records.md lists the kinds); those included in Sundog are always
    compared, too.
    """
    directory = None if source is None else Path(source)
    from sundog.sim.cost.overhead import NO_OVERHEAD, host_overhead
    from sundog.sim.files.run_files import write_whole
    from sundog.sim.show.console import console_for
    from sundog.sim.show.validation_table import ShownRefusal, accuracy_page, print_validation, to_json
    from sundog.sim.validation.errors import ValidationRow
    from sundog.sim.validation.predict import predict
    from sundog.sim.validation.records import find_servers

    if asked.page is not None:
        check_writable(asked.page)
    rows, refusals = [], []
    for server in [s for folder in (OWN, directory) if folder for s in find_servers(folder)]:
        remark(f"{server.name}: {len(server.requests):,} requests")
        try:
            overhead = host_overhead(server.plans_ahead) if asked.host_overhead else NO_OVERHEAD
            predictions = predict(server, overhead, asked.cost)
        except ConfigError as error:
            refusals.append(ShownRefusal(server.name, str(error)))
            continue
        rows += [ValidationRow(server, *pair) for pair in zip(server.stages, predictions, strict=True)]
    if asked.page is not None:
        with writing(asked.page):
            write_whole(Path(asked.page), accuracy_page(rows, refusals))
    if asked.as_json:
        click.echo(to_json(rows, refusals))
    else:
        print_validation(rows, refusals, console_for())
