"""Tables of a fleet whose engines are not all alike."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sundog.sim.fleet.figures import FleetFigures
from sundog.sim.show.console import print_table, table_of

MOST_FAULTS = 20
"""Most rows of a table of faults."""


def print_fleet(console: Console, fleet: FleetFigures) -> None:
    """Print a row for each pool, and one for the transfers between them."""
    table = table_of("pool", "replicas", "GPUs", "busy", "KV blocks each", "most in use")
    for pool in fleet.pools:
        shares = (f"{pool.busy_fraction:.1%}", f"{pool.num_kv_blocks:,}", f"{pool.kv_use_max:.1%}")
        table.add_row(escape(pool.pool), f"{pool.replicas}", f"{pool.num_gpus}", *shares)
    print_table(console, table)
    if fleet.faults:
        print_table(console, _faults(fleet))
    if (scaling := fleet.scaling) is not None:
        console.print(
            f"{scaling.gpu_hours:,.3f} GPU-hours, {scaling.mean_replicas:.2f} replicas on average,"
            f" {scaling.num_starts:,} starts; engines computed for {scaling.busy_gpu_hours:,.3f}; without"
            f" scaling it would be {scaling.all_gpu_hours:,.3f}",
            markup=False,
        )
        for its in scaling.pools:
            console.print(
                f"{its.pool}: {its.gpu_hours:,.3f} GPU-hours of {its.all_gpu_hours:,.3f},"
                f" {its.num_starts:,} starts",
                markup=False,
            )
    if (moves := fleet.moves) is not None:
        console.print(
            f"{moves.num_moves:,} requests moved, {moves.num_with_kv:,} of them with their KV; a move"
            f" stopped a request for {moves.mean_stop_s * 1e3:,.2f} ms on average",
            markup=False,
        )
    if (moved := fleet.transfers) is not None:
        console.print(
            f"{moved.num_transfers:,} transfers of KV, {moved.num_tokens:,} tokens:"
            f" mean {moved.mean_s * 1e3:,.2f} ms, p99 {moved.p99_s * 1e3:,.2f} ms",
            markup=False,
        )


def _faults(fleet: FleetFigures) -> Table:
    table = table_of("fault", "at s", "replica", "ended", "begun again", "clients left")
    for fault in fleet.faults[:MOST_FAULTS]:
        replica = "" if fault.replica is None else f"{fault.replica}"
        counts = (fault.num_ended, fault.num_again, fault.num_cancelled)
        table.add_row(fault.kind, f"{fault.at_s:,.3f}", replica, *(f"{count:,}" for count in counts))
    if (num_more := len(fleet.faults) - MOST_FAULTS) > 0:
        table.add_row(f"and {num_more:,} more", *[""] * 5)
    return table
