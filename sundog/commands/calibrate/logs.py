"""A cost model from a log of steps, and its words."""

from pathlib import Path
from typing import TYPE_CHECKING

from sundog.ends import remark

if TYPE_CHECKING:
    from sundog.sim.cost.calibrated import Calibrated


def from_steps(log: Path, output: Path) -> None:
    """Fit to forward-pass metrics, one step a line."""
    from sundog.sim.cost.cost_file import write_cost
    from sundog.sim.figures.fit_log import fit_steps

    model, measured, error, num_steps = fit_steps(log)
    write_cost(output, model, f"sundog calibrate {log.resolve().name}", measured)
    remark(f"{output}: {in_words(model)}, from {num_steps:,} steps")
    remark(
        f"explains a step to {error:.1%} (median); steps had up to {measured.tokens:,.0f} tokens,"
        f" {measured.decodes:,.0f} decodes and {measured.context_tokens:,.0f} tokens of context: a replay"
        " that asks for more says so"
    )


def in_words(model: "Calibrated") -> str:
    """Write the coefficients as people read them."""
    return (
        f"{model.step * 1e3:.2f} ms a step, {model.per_token * 1e6:.2f} us a token,"
        f" {model.per_decode * 1e6:.2f} us a decode, {model.per_context_token * 1e9:.2f} ns a token"
        f" of context, {model.per_prefill_pair * 1e12:.2f} ps a pair"
    )
