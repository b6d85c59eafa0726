"""`sundog capacity`: the largest load at which a fleet meets its objectives."""

import json
import math
from dataclasses import dataclass
from typing import Any

import click

from sundog.actors.config import ConfigError
from sundog.fast import one_thread
from sundog.options.capacity import CapacityTerms
from sundog.options.engine import EngineOptions
from sundog.options.row import Switch, option
from sundog.options.simulation import LoadOptions, ReadingOptions, TargetOptions, TermsOptions
from sundog.options.takes import command, takes
from sundog.sweeps.cell import Plan
from sundog.sweeps.source import workload_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityOptions:
    """Options of how the largest load is shown."""

    as_json: bool = option(False, Switch(pair=False), "Print the results as JSON.", flag="--json", kept=False)


@command
@takes(
    CapacityTerms, CapacityOptions, TargetOptions, ReadingOptions, LoadOptions, TermsOptions, EngineOptions
)
@click.argument("source", metavar="TRACE|SPEC.toml")
def capacity(
    how: CapacityTerms,
    asked: CapacityOptions,
    target: TargetOptions,
    reading: ReadingOptions,
    load: LoadOptions,
    terms: TermsOptions,
    engine: EngineOptions,
    source: str,
) -> None:
    """Find the largest load at which a fleet meets objectives.

    The trace's arrivals are compressed or stretched in time, up to the largest load that meets --slo. For
    sessions of a workload (SPEC) their number changes instead, and their pauses stay the same.
    """
    one_thread()
    if "," in target.gpu:
        raise ConfigError(f"--gpu is {target.gpu}: give one GPU, or use `sundog plan`, which takes several")
    from sundog.planning.capacity import find_capacity
    from sundog.planning.search import MOST_LOAD

    shared = Plan(
        workload_of(source, reading),
        source,
        engine=engine,
        target=target,
        load=load,
        terms=terms,
        judged_s=how.judge_s or None,
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
        click.echo(
            f"The fleet does not meet the objectives at 1/{MOST_LOAD:g} of this load: a request may take too"
            " long even alone. Loosen them, or try another GPU (--gpu) or more ranks (-tp)."
        )
        return

    def spread(half_width: float) -> str:
        if math.isnan(half_width):
            return ""
        return f" ± {half_width:,.0f}" if half_width >= 100 else f" ± {half_width:.2g}"

    samples = f"{num_seeds} samples" if num_seeds > 1 else "one sample, so no interval"
    limit = "even at" if is_most else "up to"
    rate = f"{rates.mean:,.0f}" if rates.mean >= 1000 else f"{rates.mean:.3g}"
    click.echo(
        f"The objectives are met {limit} {rate}{spread(rates.half_width)} requests/s,"
        f" {factors.mean:.3g}{spread(factors.half_width)} times this load ({samples})."
        + (f" No sample was tried at more than {MOST_LOAD:g} times its load." if is_most else "")
    )
    if lost.num_unanswered:
        click.echo(
            f"At that load {lost.num_unanswered:,} of {lost.num_requests:,} requests get no answer, which the"
            " objectives allow."
        )
