"""A cost model from a log of steps."""

from pathlib import Path

from sundog.calibration.found import FoundCost, in_words
from sundog.sim.cost.cost_file import write_cost
from sundog.sim.figures.fit_log import fit_steps


def from_steps(log: Path, output: Path) -> FoundCost:
    """Fit to forward-pass metrics, one step a line."""
    model, measured, error, num_steps = fit_steps(log)
    write_cost(output, model, f"sundog calibrate {log.resolve().name}", measured)
    return FoundCost(
        file=output,
        remarks=(
            f"{output}: {in_words(model)}, from {num_steps:,} steps",
            f"explains a step to {error:.1%} (median); steps had up to {measured.tokens:,.0f} tokens,"
            f" {measured.decodes:,.0f} decodes and {measured.context_tokens:,.0f} tokens of context: a replay"
            " that asks for more says so",
        ),
    )
