"""The tables of a fleet whose engines are not all alike."""

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sim.fleet.figures import FleetFigures
from sim.show.console import print_table


def print_fleet(console: Console, fleet: FleetFigures) -> None:
    """Print a row for each pool, and one for the transfers between them."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("pool", "replicas", "GPUs", "busy", "KV blocks each", "most in use"):
        table.add_column(name, justify="left" if name == "pool" else "right")
    for pool in fleet.pools:
        shares = (f"{pool.busy_fraction:.1%}", f"{pool.num_kv_blocks:,}", f"{pool.kv_use_max:.1%}")
        table.add_row(escape(pool.pool), f"{pool.replicas}", f"{pool.num_gpus}", *shares)
    print_table(console, table)
    if (moved := fleet.transfers) is not None:
        console.print(
            f"{moved.num_transfers:,} transfers of KV, {moved.num_tokens:,} tokens:"
            f" mean {moved.mean_s * 1e3:,.2f} ms, p99 {moved.p99_s * 1e3:,.2f} ms",
            markup=False,
        )
