"""`sundog validate`: predicted beside real."""

import sys
from pathlib import Path

import click


@click.command()
@click.argument("directory", required=False, type=click.Path(path_type=Path), metavar="[DIR]")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
@click.option("--cost", default="auto", show_default=True, help="tables, roofline or auto.")
@click.option("--host-overhead/--no-host-overhead", default=True, show_default=True)
def validate(directory: Path | None, as_json: bool, cost: str, host_overhead: bool) -> None:
    """Simulate the load of real servers and compare with what they measured.

    DIR holds records of servers (see `sim/figures/validate/measured.py`); without it, those that come
    with Sundog.
    """
    from rich.console import Console

    from sim.cost.overhead import NO_OVERHEAD
    from sim.cost.overhead import host_overhead as fitted_overhead
    from sim.figures.validate.predict import predict
    from sim.figures.validate.records import find_servers
    from sim.show.validation_table import Row, print_table, to_json

    own = Path(__file__).parents[1] / "sim" / "figures" / "validate" / "servers"
    rows = []
    for server in [s for folder in (own, directory) if folder for s in find_servers(folder)]:
        print(f"{server.name}: {len(server.requests):,} requests", file=sys.stderr)
        overhead = NO_OVERHEAD
        if host_overhead:
            overhead = fitted_overhead(server.async_scheduling)
        predictions = predict(server, overhead, cost)
        rows += [Row(server, *pair) for pair in zip(server.stages, predictions, strict=True)]
    if as_json:
        click.echo(to_json(rows))
    else:
        console = Console(highlight=False)
        print_table(rows, console if console.is_terminal else Console(highlight=False, width=110))
