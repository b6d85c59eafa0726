"""Sums over all requests of a run, the terms that the run is held against, and how near it is to
saturation.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sim.figures.named import PROGRAM, Metric, Objective
from sim.record.rows import Floats, RequestTimes, Rows


@dataclass(frozen=True, slots=True)
class RunTerms:
    """The terms that a run is held against: limits per request in seconds, and what its GPUs take.

    `num_gpus`, of a fleet that scaled in the mean, and `max_num_running` are all replicas' together;
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
        """Mark the requests that met every limit, their own before these; None if there is none at all.

        One token has no TPOT to miss.
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
    last_finish_s: float = -math.inf
    prompt_tokens: int = 0
    output_tokens: int = 0
    admitted_tokens: int = 0
    hit_tokens: int = 0
    num_preemptions: int = 0
    recomputed_tokens: int = 0

    def add(self, rows: Rows, met: NDArray[np.bool_] | None) -> None:
        """Add some more requests, and which of them met every limit, if there are limits."""
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
        if done.any():
            self.last_finish_s = max(self.last_finish_s, float(rows.finish_s[done].max()))
        self.prompt_tokens += int(rows.num_prompt_tokens[done].sum())
        self.output_tokens += int(rows.num_output_tokens[done].sum())
        self.admitted_tokens += int(rows.num_prompt_tokens[rows.replica >= 0].sum())
        self.hit_tokens += int(rows.prefix_hit_tokens.sum())
        self.num_preemptions += int(rows.num_preemptions.sum())
        self.recomputed_tokens += int(rows.recomputed_tokens.sum())


KNEE = 0.85
"""The saturation from which small errors of step time become large ones of waiting time."""
Regime = Literal["below the knee", "near the knee", "beyond the knee"]
Parts = Callable[[], Iterator[tuple[Rows, NDArray[np.bool_]]]]
"""Requests in parts, and which of them count, all of which finished."""


def regime_of(saturation: float) -> Regime:
    """Return the regime: requests wait briefly, perhaps long, or ever longer while the load lasts."""
    if saturation < KNEE:
        return "below the knee"
    return "near the knee" if saturation < 1 else "beyond the knee"


def of_capacity(saturation: float) -> str:
    """Return the saturation in words; a share of 978 % says less than 9.8 times."""
    share = f"{saturation:.0%} of" if saturation < 1 else f"{saturation:,.1f} times"
    return f"{share} what can run at once" if saturation < 1 else f"{share} what can be served"


def saturation(parts: Parts, max_num_running: int | None, num_blocks: int, block_size: int) -> float | None:
    """Mean requests in the server over how many it can run, by the scarcer of running slots and blocks.

    By Little's law; None without requests, or where it is not known how many may run. Where TTFT grows all
    the time, requests pile up however many slots are free: then it is 1 and what TTFT grows by in a second,
    if that is more. Requests are taken to hold the blocks of their prompts and half of their answers; prompts
    that hit the prefix cache share blocks, which this leaves out.
    Sums are exact, so that it does not matter how the requests are cut into parts.
    """
    if max_num_running is None:
        return None
    spans: list[tuple[float, float]] = []
    spent, held, arrivals, ttfts = list[Floats](), list[Floats](), list[Floats](), list[Floats]()
    for rows, chosen in parts():
        if chosen.any():
            arrival_s = rows.arrival_s[chosen]
            spans.append((float(arrival_s.min()), float(arrival_s.max())))
            spent.append(_spent_s(rows)[chosen])
            held.append(_held_token_s(rows)[chosen])
            arrivals.append(arrival_s)
            ttfts.append(rows.first_token_s[chosen] - arrival_s)
    spent_s = _total(spent)
    if not spent_s:
        return None
    span_s = max(last for _, last in spans) - min(first for first, _ in spans)
    held_blocks = max(_total(held) / spent_s / block_size, 1.0)
    share = spent_s / (span_s or 1.0) / min(max_num_running, (num_blocks - 1) / held_blocks)
    growth = _growth(np.concatenate(arrivals), np.concatenate(ttfts))
    return max(share, 1 + growth) if growth >= PILES else share


PILES = 0.1
"""Seconds of TTFT for each second of load, from which on requests pile up."""


def _growth(arrival_s: Floats, ttft_s: Floats) -> float:
    """The slope of TTFT over time, by least squares; 0 where nothing is known of it."""
    known = ~np.isnan(ttft_s)
    off_s = arrival_s[known] - arrival_s[known].mean() if known.any() else np.zeros(1)
    spread = float((off_s * off_s).sum())
    return float((off_s * ttft_s[known]).sum() / spread) if spread > 0 else 0.0


def _total(parts: list[Floats]) -> float:
    return math.fsum(chain.from_iterable(part.tolist() for part in parts))


def _spent_s(rows: Rows) -> Floats:
    spent: Floats = rows.finish_s - rows.arrival_s
    return spent


def _held_token_s(rows: Rows) -> Floats:
    held = rows.num_prompt_tokens - rows.prefix_hit_tokens + rows.num_output_tokens / 2
    product: Floats = held * _spent_s(rows)
    return product


def percentiles(metrics: Iterable[Metric], rows: Rows, times: RequestTimes) -> dict[str, float]:
    """Means and percentiles over finished requests by the metric's name; other figures are left out."""
    found: dict[str, float] = {}
    owner = np.array(rows.tenant, dtype=object)
    for metric in metrics:
        if metric.part is not None and metric.figure != PROGRAM:
            own = rows.is_done if metric.tenant is None else rows.is_done & (owner == metric.tenant)
            values = getattr(times, metric.figure)[own]
            found[metric.name] = part_of(values[~np.isnan(values)], metric.percent)
    return found


def part_of(values: Floats, percent: float | None) -> float:
    """A percentile of values, or with None their mean; NaN of nothing."""
    if not len(values):
        return math.nan
    return float(values.mean() if percent is None else np.percentile(values, percent))
