"""Runs in the figures that an experiment compares, all without their warm-up.

Law: runs that were given the same arrivals are measured over the same requests. Each of them says when it
settled, and what is warm-up in any is left out of all: two settings whose warm-ups end at different requests
would else differ by the requests that only one of them counts. Runs that were given other arrivals have no
part in it, because their ids name other requests, and a run that never settles cuts nothing from any.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.figures.engine import Replicas
from sim.figures.metric import LATENCIES, NAMES, PERCENT, TENANT, WHOLE
from sim.figures.saturation import saturation
from sim.figures.statistics.intervals import FEWEST, drifts, find_warm_up
from sim.figures.sweep.played import Played, chosen
from sim.figures.sweep.sweep import Failed, Job, Measures
from sim.figures.tenants import tenants_of
from sim.figures.totals import Totals
from sim.record.rows import latencies


def measured(
    jobs: Iterable[Job], outcomes: Iterable[Played | Failed], warmup_s: float | None
) -> Iterator[Measures | Failed]:
    """The figures of each run, in the order of the jobs, which names one seed after another."""
    seed: int | None = None
    group: list[Played | Failed] = []
    for job, outcome in zip(jobs, outcomes, strict=True):
        if group and job[1] != seed:
            yield from _of_one_seed(group, warmup_s)
            group = []
        seed = job[1]
        group.append(outcome)
    yield from _of_one_seed(group, warmup_s)


def _of_one_seed(outcomes: Sequence[Played | Failed], warmup_s: float | None) -> Iterator[Measures | Failed]:
    early = {
        number: warm_up(each, warmup_s)
        for number, each in enumerate(outcomes)
        if not isinstance(each, Failed)
    }
    shared: dict[bytes, set[str]] = {}
    for number, each in enumerate(outcomes):
        if not isinstance(each, Failed):
            shared.setdefault(each.load, set()).update(early[number].request_ids)
    for number, each in enumerate(outcomes):
        if isinstance(each, Failed):
            yield each
            continue
        own, is_settled = early[number]
        # A time that was asked for is that time in every run, also where clients wait for answers.
        yield measure(each, shared[each.load] if warmup_s is None else own, is_settled)


class Early(NamedTuple):
    """The requests of a run's warm-up, and whether the times to first token have settled after them."""

    request_ids: set[str]
    is_settled: bool


def warm_up(run: Played, warmup_s: float | None) -> Early:
    """Find what arrived before `warmup_s`, or if that is None before the times to first token settled."""
    done, ttft_s = run.rows.is_done, latencies(run.rows, run.front_end_s).ttft_s
    if warmup_s is not None:
        early = run.rows.arrival_s < warmup_s
        is_settled = not drifts(ttft_s[done & ~early])
    else:
        num_early, is_settled = find_warm_up(ttft_s[done])
        early = np.cumsum(done) <= num_early if num_early else np.zeros(len(done), dtype=bool)
    return Early({run.request_ids[i] for i in np.flatnonzero(early).tolist()}, is_settled)


def measure(run: Played, left_out: set[str], is_settled: bool = True) -> Measures:
    """A run without these requests: latencies of finished ones, and figures of all together.

    Time is counted from the first arrival that is kept to the last finish, that of engines to the end of the
    last step: without a warm-up every figure is the one that `replay` prints. All are NaN if a warm-up leaves
    fewer than `FEWEST` finished requests.
    """
    kept = run.kept(left_out)
    rows = chosen(run.rows, kept)
    times, done = latencies(rows, run.front_end_s), rows.is_done
    found: Measures = {
        "num_warmup": float((run.rows.is_done & ~kept).sum()),
        "num_measured": float(done.sum()),
        "unsettled": float(not is_settled),
    }
    if found["num_warmup"] and found["num_measured"] < FEWEST:
        return found | dict.fromkeys(NAMES, math.nan)
    for name in LATENCIES:
        values = getattr(times, name)[done]
        values = values[~np.isnan(values)]
        for part, percent in PERCENT.items():
            found[f"{name}.{part}"] = _part(values, percent)
    totals = Totals()
    met = run.terms.met(rows, times)
    totals.add(rows, met)
    replicas = Replicas(run.num_replicas)
    replicas.add(rows)
    whole = _whole(run, totals, replicas, int(np.argmax(kept)) if kept.any() else 0)
    tenants = tenants_of(rows, met, run.front_end_s)
    whole["fairness"], whole["slowdown_fairness"] = tenants.fairness, tenants.slowdown_fairness
    whole["saturation"] = None
    if run.terms.max_num_running is not None:
        whole["saturation"] = saturation(
            lambda: iter([(rows, done)]),
            run.terms.max_num_running,
            run.num_blocks * run.num_replicas + 1,
            run.terms.block_size,
        )
    for name in WHOLE:
        value = whole[name]
        found[name] = math.nan if value is None else float(value)
    for tenant, figures in tenants.figures.items():
        for name, figure in asdict(figures).items():
            found[f"{TENANT}{tenant}.{name}"] = math.nan if figure is None else float(figure)
    return found


def _whole(run: Played, totals: Totals, replicas: Replicas, first: int) -> dict[str, float | None]:
    """What the kept requests and the time since the first of them add up to."""
    span_s = totals.last_finish_s - totals.first_arrival_s if totals.num_finished else 0.0
    per_s, terms = 1 / span_s if span_s else 0.0, run.terms
    engines_s = (run.last_end_s - totals.first_arrival_s) * run.num_replicas
    per_engine_s = 1 / engines_s if engines_s > 0 else 0.0
    busy_s = float(run.busy_s[-1] - run.busy_s[first])
    block_seconds = float(run.block_seconds[-1] - run.block_seconds[first])
    price, tokens = terms.price_per_gpu_h, totals.output_tokens
    return {
        "output_tokens_per_s": tokens * per_s,
        "requests_per_s": totals.num_finished * per_s,
        "prefix_hit_rate": totals.hit_tokens / max(totals.admitted_tokens, 1),
        "slo_attainment": None if totals.num_met is None else totals.num_met / max(totals.num_requests, 1),
        "goodput_requests_per_s": None if totals.num_met is None else totals.num_met * per_s,
        "busy_fraction": busy_s * per_engine_s,
        "kv_use_mean": block_seconds * per_engine_s / run.num_blocks,
        "num_preemptions": float(totals.num_preemptions),
        "imbalance": replicas.imbalance,
        "finished_fraction": totals.num_finished / totals.num_requests if totals.num_requests else None,
        "cost_per_million_output_tokens": None
        if price is None or not tokens
        else price / 3600 * 1e6 * span_s * terms.num_gpus / tokens,
    }


def _part(values: NDArray[np.float64], percent: float | None) -> float:
    if not len(values):
        return math.nan
    return float(values.mean() if percent is None else np.percentile(values, percent))
