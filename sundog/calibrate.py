"""`sundog calibrate`: a cost model from the latencies of requests, or from a log of steps."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sundog.ends import remark
from sundog.options.takes import command

if TYPE_CHECKING:
    from sim.cost.calibrated import Calibrated


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
    """Fit a cost model to the latencies of requests, or to steps.

    LOG is the folder of a run, or of a server's log of requests, which has meta.json and
    requests.jsonl.gz (sim/figures/validate/logs.py says which fields); or a file of forward-pass
    metrics, one step a line, as `--step-log` and engines write them (docs/records.md).
    """
    if log.is_file():
        _from_steps(log, output)
    else:
        _from_requests(log, output)


def _from_steps(log: Path, output: Path) -> None:
    from sim.cost.cost_file import write_cost
    from sim.figures.calibrate.from_steps import fit_steps

    model, measured, error, num_steps = fit_steps(log)
    write_cost(output, model, f"sundog calibrate {log.resolve().name}", measured)
    remark(f"{output}: {_in_words(model)}, from {num_steps:,} steps")
    remark(
        f"explains a step to {error:.1%} (median); steps had up to {measured.tokens:,.0f} tokens,"
        f" {measured.decodes:,.0f} decodes and {measured.context_tokens:,.0f} tokens of context: a replay"
        " that asks for more says so"
    )


def _from_requests(log: Path, output: Path) -> None:
    import numpy as np

    from sim.cost.cost_file import write_cost
    from sim.figures.calibrate.from_requests import fit_requests
    from sim.figures.calibrate.observed import read_observed

    observed = read_observed(log)
    model, error, num_left_out = fit_requests(observed)
    write_cost(output, model, f"sundog calibrate {log.resolve().name}")
    num_requests = int((np.asarray(observed.num_output_tokens) > 1).sum())
    remark(f"{output}: {_in_words(model)}, from {num_requests:,} requests")
    remark(
        f"explains how long requests decoded to {error:.1%} (median); {num_left_out:,} left out,"
        " which took too long for it"
    )


def _in_words(model: "Calibrated") -> str:
    return (
        f"{model.step * 1e3:.2f} ms a step, {model.per_token * 1e6:.2f} us a token,"
        f" {model.per_decode * 1e6:.2f} us a decode, {model.per_context_token * 1e9:.2f} ns a token"
        f" of context, {model.per_prefill_pair * 1e12:.2f} ps a pair"
    )
