"""`sundog calibrate`: a cost model from the latencies of requests."""

from pathlib import Path

import click

from sundog.ends import remark
from sundog.options.takes import command


@command
@click.argument("log", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The .toml to write, for `replay --cost FILE`.",
)
def calibrate(log: Path, output: Path) -> None:
    """Fit a cost model to the latencies of requests.

    LOG is the folder of a run, or of a server's log of requests, which has meta.json and
    requests.jsonl.gz (sim/figures/validate/logs.py says which fields).
    """
    import numpy as np

    from sim.cost.cost_file import write_cost
    from sim.figures.calibrate.from_requests import fit_requests
    from sim.figures.calibrate.observed import read_observed

    observed = read_observed(log)
    model, error, num_left_out = fit_requests(observed)
    write_cost(output, model, f"sundog calibrate {log.resolve().name}")
    remark(
        f"{output}: {model.step * 1e3:.2f} ms a step, {model.per_token * 1e6:.2f} us a token,"
        f" {model.per_decode * 1e6:.2f} us a decode, {model.per_context_token * 1e9:.2f} ns a token"
        f" of context, {model.per_prefill_pair * 1e12:.2f} ps a pair, from"
        f" {int((np.asarray(observed.num_output_tokens) > 1).sum()):,} requests"
    )
    remark(
        f"explains how long requests decoded to {error:.1%} (median); {num_left_out:,} left out,"
        " which took too long for it"
    )
