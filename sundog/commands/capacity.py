"""`sundog capacity`: the largest load at which a fleet holds its objectives."""

import json
import math
from dataclasses import dataclass
from typing import Any

import click

from sundog.fast import one_thread
from sundog.options.engine import EngineOptions
from sundog.options.row import Real, Switch, Whole, option
from sundog.options.serving import on_ray
from sundog.options.simulation import LoadOptions, ReadingOptions, TargetOptions, TermsOptions
from sundog.options.takes import command, takes
from sundog.sweeps.cell import Plan
from sundog.sweeps.source import workload_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityOptions:
    """Options of the search for the largest load."""

    replications: int = option(5, Whole(1, 1000), "Samples of the workload, each with a largest load.")
    confidence: float = option(0.95, Real(0.5, 0.9999), "Confidence of the interval.")
    resolution: float = option(0.01, Real(1e-4, 0.5), "Relative precision of each largest load.")
    jobs: int | None = option(None, Whole(1, 1024), "Processes; one per core if not given.")
    on: str | None = on_ray("Run on a cluster: ray begins one here, ray:HOST:PORT is there.", kept=False)
    as_json: bool = option(False, Switch(pair=False), "Print the same as JSON.", flag="--json", kept=False)


@command
@takes(CapacityOptions, TargetOptions, ReadingOptions, LoadOptions, TermsOptions, EngineOptions)
@click.argument("source", metavar="TRACE|SPEC.toml")
def capacity(
    asked: CapacityOptions,
    target: TargetOptions,
    reading: ReadingOptions,
    load: LoadOptions,
    terms: TermsOptions,
    engine: EngineOptions,
    source: str,
) -> None:
    """Find the largest load at which a fleet meets objectives.

    The instants of arrival are brought closer together, or farther apart, until the objectives of --slo just
    hold. Sessions that a SPEC describes begin more or less often, and keep their pauses.
    """
    one_thread()
    from sundog.planning.capacity import CapacityTerms, find_capacity
    from sundog.planning.search import MOST_LOAD

    shared = Plan(workload_of(source, reading), source, engine=engine, target=target, load=load, terms=terms)
    how = CapacityTerms(
        replications=asked.replications,
        confidence=asked.confidence,
        resolution=asked.resolution,
        jobs=asked.jobs,
        on=asked.on,
    )
    result = find_capacity(shared, terms, engine.replicas, how)
    found, factors, rates, is_most = result.loads, result.factor, result.requests_per_s, result.is_most_tried
    num_seeds = len(found)
    lost = max(found, key=lambda each: each.num_unanswered)
    if asked.as_json:
        plain: dict[str, Any] = {
            "factors": [each.factor for each in found],
            "requests_per_s": [each.requests_per_s for each in found],
            "unanswered": [each.num_unanswered for each in found],
            "is_most_tried": is_most,
        }
        for name, value in (("factor", factors), ("rate", rates)):
            plain[name] = [None if math.isnan(each) else each for each in value]
        click.echo(json.dumps(plain, indent=1))
        return
    if not factors.mean:
        click.echo(f"The fleet does not hold the objectives at 1/{MOST_LOAD:g} of this load.")
        return

    def spread(half_width: float) -> str:
        if math.isnan(half_width):
            return ""
        return f" ± {half_width:,.0f}" if half_width >= 100 else f" ± {half_width:.2g}"

    draws = f"{num_seeds} draws" if num_seeds > 1 else "one draw, so that there is no interval"
    limit = "even at" if is_most else "up to"
    rate = f"{rates.mean:,.0f}" if rates.mean >= 1000 else f"{rates.mean:.3g}"
    click.echo(
        f"The objectives hold {limit} {rate}{spread(rates.half_width)} requests/s,"
        f" {factors.mean:.3g}{spread(factors.half_width)} times this load ({draws})."
        + (f" No draw is tried at more than {MOST_LOAD:g} times its load." if is_most else "")
    )
    if lost.num_unanswered:
        click.echo(
            f"There {lost.num_unanswered:,} of {lost.num_requests:,} requests get no answer, for which the"
            " objectives leave room."
        )
