"""A cost model from the latencies of requests, or from a log of steps."""

from pathlib import Path
from typing import TYPE_CHECKING

from sundog.ends import remark

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sim.cost.calibrated import Calibrated
    from sundog.options.engine import EngineOptions


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


def from_requests(logs: "Sequence[Path]", output: Path, engine: "EngineOptions") -> None:
    """Fit to folders of requests, each a load of the same server."""
    import numpy as np

    from sim.cost.profile import HOST, LOADS_ERROR, MEASURED, write_cost
    from sim.figures.fit_log import fit_requests, read_observed
    from sim.files.run_files import REQUESTS

    observed = [read_observed(log) for log in logs]
    fitted = fit_requests(*observed)
    source = f"sundog calibrate {' '.join(log.resolve().name for log in logs)}"
    more: dict[str, dict[str, object]] = {}
    if fitted.errors:
        largest = round(max(map(abs, fitted.errors)), 4)
        more[MEASURED] = {LOADS_ERROR: largest, "left_out_errors": [round(e, 4) for e in fitted.errors]}
    write_cost(output, fitted.model, source, fitted.measured, more)
    num_requests = sum(int((np.asarray(each.num_output_tokens) > 1).sum()) for each in observed)
    remark(f"{output}: {in_words(fitted.model)}, from {num_requests:,} requests")
    remark(
        f"explains how long requests decoded to {fitted.median_error:.1%} (median); {fitted.num_left_out:,}"
        " left out, which took too long for it"
    )
    if len(logs) == 1 or not all((log / REQUESTS).is_file() for log in logs):
        return
    from sundog.commands.calibrate.front import Loads

    loads = Loads.of(logs, output, engine)
    front_s = loads.front_s(fitted.model, range(len(logs)))
    errors = [loads.without(index, model) for index, model in enumerate(fitted.others)]
    more[MEASURED] |= {f"left_out_{name}": [round(own[name], 4) for own in errors] for name in errors[0]}
    write_cost(output, fitted.model, source, fitted.measured, {HOST: {"request_s": front_s}, **more})
    remark(f"{front_s * 1e3:.2f} ms in front of a request, in the mean of the loads")
    for log, own in zip(logs, errors, strict=True):
        words = ", ".join(f"{name.upper()} {error:+.1%}" for name, error in own.items())
        remark(f"fitted to the other loads alone, it predicts {log.resolve().name} with {words} (means)")


def in_words(model: "Calibrated") -> str:
    """Write the coefficients as people read them."""
    return (
        f"{model.step * 1e3:.2f} ms a step, {model.per_token * 1e6:.2f} us a token,"
        f" {model.per_decode * 1e6:.2f} us a decode, {model.per_context_token * 1e9:.2f} ns a token"
        f" of context, {model.per_prefill_pair * 1e12:.2f} ps a pair"
    )
