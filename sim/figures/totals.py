"""Sums over all requests of a run, its limits and prices, and the cost of its GPUs.

Law: a run lasts from its first arrival until its last request has ended, in whichever way, and no GPU works
any more: throughput, energy and cost are over all this time.
"""

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from sundog.actors.core.records import dataclass
from sundog.sim.figures.named import PROGRAM, Metric, Objective
from sundog.sim.record.rows import Floats, RequestTimes, Rows


@dataclass(frozen=True, slots=True)
class RunTerms:
    """Limits per request in seconds, and power and price of a run's GPUs.

    `num_gpus` (the mean of a fleet that scaled) and `max_num_running` are totals of all replicas;
    `price_per_gpu_h` is in any currency. `objectives` are limits for the whole run.
    """

    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None
    slo_e2e_s: float | None = None
    num_gpus: float = 1
    max_num_running: int | None = None
    block_size: int = 16
    gpu_power_w: float | None = None
    price_per_gpu_h: float | None = None
    objectives: tuple[Objective, ...] = ()

    def met(self, rows: Rows, times: RequestTimes) -> NDArray[np.bool_] | None:
        """Mark the requests that met every limit, their own before these; None without any limit.

        A single token has no TPOT to miss.
        """
        limits = (
            (times.ttft_s, rows.slo_ttft_s, self.slo_ttft_s),
            (times.tpot_s, rows.slo_tpot_s, self.slo_tpot_s),
            (times.e2e_s, rows.slo_e2e_s, self.slo_e2e_s),
        )
        is_any, met = False, rows.is_done.copy()
        for values, own_s, common_s in limits:
            limit_s = own_s if common_s is None else np.where(np.isnan(own_s), common_s, own_s)
            is_any = is_any or not bool(np.isnan(limit_s).all())
            met &= ~(values > limit_s)
        return met if is_any else None


NO_TERMS = RunTerms()


@dataclass(slots=True)
class RequestTotals:
    """Sums over all requests of a run."""

    num_requests: int = 0
    num_finished: int = 0
    num_aborted: int = 0
    num_refused: int = 0
    num_failed: int = 0
    num_cut: int = 0
    num_met: int | None = None
    first_arrival_s: float = math.inf
    last_end_s: float = -math.inf
    """Latest time at which a request arrived, or ended in whichever way."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    lost_output_tokens: int = 0
    """Output tokens of requests that did not finish."""
    admitted_tokens: int = 0
    hit_tokens: int = 0
    num_preemptions: int = 0
    recomputed_tokens: int = 0

    def add(self, rows: Rows, met: NDArray[np.bool_] | None) -> None:
        """Add requests, and which of them met every limit, if there are limits."""
        if not len(rows.arrival_s):
            return
        done = rows.is_done
        self.num_requests += len(done)
        self.num_finished += int(done.sum())
        self.num_aborted += rows.reason.count("abort")
        self.num_refused += rows.reason.count("refused")
        self.num_failed += rows.reason.count("error")
        self.num_cut += rows.reason.count("length")
        if met is not None:
            self.num_met = (self.num_met or 0) + int(met.sum())
        self.first_arrival_s = min(self.first_arrival_s, float(rows.arrival_s.min()))
        ended_s = np.where(np.isnan(rows.finish_s), rows.arrival_s, rows.finish_s)
        self.last_end_s = max(self.last_end_s, float(ended_s.max()))
        self.prompt_tokens += int(rows.num_prompt_tokens[done].sum())
        self.output_tokens += int(rows.num_output_tokens[done].sum())
        self.lost_output_tokens += int(rows.num_output_tokens[~done].sum())
        self.admitted_tokens += int(rows.num_prompt_tokens[rows.replica >= 0].sum())
        self.hit_tokens += int(rows.prefix_hit_tokens.sum())
        self.num_preemptions += int(rows.num_preemptions.sum())
        self.recomputed_tokens += int(rows.recomputed_tokens.sum())

    @property
    def attainment(self) -> float | None:
        """Share of all requests that met every limit; None without limits."""
        return None if self.num_met is None else self.num_met / max(self.num_requests, 1)

    def duration_s(self, last_step_s: float | None = None) -> float:
        """Return the seconds from the first arrival to the end of the last request or, if later, of the
        last step.
        """
        if not self.num_requests:
            return 0.0
        until_s = self.last_end_s if last_step_s is None else max(self.last_end_s, last_step_s)
        return until_s - self.first_arrival_s


@dataclass(frozen=True, slots=True)
class Paid:
    """Cost of a run's GPUs: total, and per output token of finished requests, if there are any."""

    gpu_s: float
    energy_j_per_output_token: float | None
    cost_per_million_output_tokens: float | None

    @classmethod
    def of(cls, terms: RunTerms, duration_s: float, num_tokens: int) -> "Paid":
        """Return the cost of all GPUs over the whole time; a fleet that scaled counts its mean number."""
        gpu_s = duration_s * terms.num_gpus

        def each(rate_per_s: float | None) -> float | None:
            return None if rate_per_s is None or not num_tokens else rate_per_s * gpu_s / num_tokens

        price = terms.price_per_gpu_h
        return cls(gpu_s, each(terms.gpu_power_w), each(None if price is None else price / 3600 * 1e6))


def percentiles(metrics: Iterable[Metric], rows: Rows, times: RequestTimes) -> dict[str, float]:
    """Return means and percentiles over finished requests by metric name; other figures are left out."""
    found: dict[str, float] = {}
    owner = np.array(rows.tenant, dtype=object)
    for metric in metrics:
        if metric.part is not None and metric.figure != PROGRAM:
            own = rows.is_done if metric.tenant is None else rows.is_done & (owner == metric.tenant)
            values = getattr(times, metric.figure)[own]
            found[metric.name] = part_of(values[~np.isnan(values)], metric.percent)
    return found


def part_of(values: Floats, percent: float | None) -> float:
    """Return a percentile of values, or their mean if `percent` is None; NaN without values."""
    if not len(values):
        return math.nan
    return float(values.mean() if percent is None else np.percentile(values, percent))
