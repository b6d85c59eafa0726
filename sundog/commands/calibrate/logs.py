"""A cost model from the latencies of requests, or from a log of steps."""

from pathlib import Path
from typing import TYPE_CHECKING

from sundog.ends import remark

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sim.cost.calibrated import Calibrated


def from_steps(log: Path, output: Path) -> None:
    """Fit to forward-pass metrics, one step a line."""
    from sim.cost.profile import write_cost
    from sim.figures.fit_log import fit_steps

    model, measured, error, num_steps = fit_steps(log)
    write_cost(output, model, f"sundog calibrate {log.resolve().name}", measured)
    remark(f"{output}: {in_words(model)}, from {num_steps:,} steps")
    remark(
        f"explains a step to {error:.1%} (median); steps had up to {measured.tokens:,.0f} tokens,"
        f" {measured.decodes:,.0f} decodes and {measured.context_tokens:,.0f} tokens of context: a replay"
        " that asks for more says so"
    )


def from_requests(logs: "Sequence[Path]", output: Path) -> None:
    """Fit to folders of requests, each a load of the same server."""
    import numpy as np

    from sim.cost.profile import LOADS_ERROR, MEASURED, write_cost
    from sim.figures.fit_log import fit_requests, read_observed

    observed = [read_observed(log) for log in logs]
    model, measured, error, num_left_out, errors = fit_requests(*observed)
    names = " ".join(log.resolve().name for log in logs)
    evidence: dict[str, object] = {}
    if errors:
        evidence = {
            LOADS_ERROR: round(max(map(abs, errors)), 4),
            "left_out_errors": [round(e, 4) for e in errors],
        }
    write_cost(output, model, f"sundog calibrate {names}", measured, {MEASURED: evidence} if errors else {})
    num_requests = sum(int((np.asarray(each.num_output_tokens) > 1).sum()) for each in observed)
    remark(f"{output}: {in_words(model)}, from {num_requests:,} requests")
    remark(
        f"explains how long requests decoded to {error:.1%} (median); {num_left_out:,} left out,"
        " which took too long for it"
    )
    for log, off in zip(logs, errors, strict=False):
        remark(f"fitted to the other loads alone, it is off by {off:+.1%} on {log.resolve().name}")


def in_words(model: "Calibrated") -> str:
    """Write the coefficients as people read them."""
    return (
        f"{model.step * 1e3:.2f} ms a step, {model.per_token * 1e6:.2f} us a token,"
        f" {model.per_decode * 1e6:.2f} us a decode, {model.per_context_token * 1e9:.2f} ns a token"
        f" of context, {model.per_prefill_pair * 1e12:.2f} ps a pair"
    )
