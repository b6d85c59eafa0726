"""From a Recorder's columns to the figures people compare; numpy, no loop over requests.

Percentiles are numpy's default (linear interpolation between order statistics). Times are seconds,
per request unless said otherwise:

    TTFT      first token - arrival, and what the front end takes (E2E as well)
    TPOT      (finish - first token) / (output tokens - 1), requests with more than one
    ITL       time between a token and the one before it, over every token
    E2E       finish - arrival
    queueing  first step that the request was part of begins - arrival
    normal.   E2E / output tokens
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from sim.recorder import Recorder, Steps

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
PERCENTILES = (50.0, 90.0, 99.0)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean and percentiles of `count` values."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class Summary:
    """One run in figures; seconds, tokens and fractions. A distribution of nothing is None.

    Throughput counts finished requests over the span from the first arrival to the last finish.
    Goodput counts those that met every limit of `Terms`, of all that arrived. `busy_fraction` is of
    all replicas' time. `fairness` is Jain's index (sum x)^2 / (n sum x^2) over the tenants' served
    tokens, prompts and outputs; None without tenants. Energy takes the GPUs' rated power all the
    time, cost their price: upper bounds for idle ones.
    `kv_use` fractions are of all replicas' blocks together (`num_kv_blocks` each), the mean over
    time. The hit rate is prefix-hit tokens over prompt tokens of all admitted requests.
    """

    num_requests: int
    num_finished: int
    num_aborted: int
    num_refused: int
    num_steps: int
    duration_s: float
    prompt_tokens: int
    output_tokens: int
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    ttft_s: Distribution | None
    tpot_s: Distribution | None
    itl_s: Distribution | None
    e2e_s: Distribution | None
    queueing_s: Distribution | None
    num_kv_blocks: int
    kv_use_mean: float
    kv_use_max: float
    prefix_hit_tokens: int
    prefix_hit_rate: float
    num_preemptions: int
    recomputed_tokens: int
    normalized_latency_s: Distribution | None
    busy_fraction: float
    tokens_per_step: float
    goodput_requests_per_s: float | None
    slo_attainment: float | None
    fairness: float | None
    energy_j_per_output_token: float | None
    cost_per_million_output_tokens: float | None

    def to_json(self) -> str:
        """JSON with keys in a fixed order and floats at full precision: same run, same bytes."""
        return json.dumps(asdict(self), indent=2, allow_nan=False)


def distribution(values: Floats) -> Distribution | None:
    """Mean and percentiles; None of nothing."""
    if not len(values):
        return None
    p50, p90, p99 = (float(value) for value in np.percentile(values, PERCENTILES))
    return Distribution(len(values), float(values.mean()), p50, p90, p99)


def weighted_distribution(values: Floats, counts: Ints) -> Distribution | None:
    """`distribution(np.repeat(values, counts))` without the repeats."""
    values, counts = values[counts > 0], counts[counts > 0]
    total = int(counts.sum())
    if not total:
        return None
    order = np.argsort(values, kind="stable")
    ordered, ends = values[order], np.cumsum(counts[order])

    def percentile(percent: float) -> float:
        place = percent / 100 * (total - 1)
        below = int(place)
        low, high = (
            float(ordered[np.searchsorted(ends, rank, side="right")])
            for rank in (below, min(below + 1, total - 1))
        )
        return low + (high - low) * (place - below)

    mean = float((values * counts).sum()) / total
    return Distribution(total, mean, *(percentile(p) for p in PERCENTILES))


def intervals(steps: Steps) -> tuple[Floats, Ints]:
    """Every interval between two tokens of one request, as values and how often each occurs.

    Between neighbouring steps the value is shared by all requests that decode through both; the
    gaps that idling or a preemption leaves occur once each.
    """
    end_s = np.array(steps.end_s, dtype=np.float64)
    rows, starts, stops = (
        np.array(column, dtype=np.int64)
        for column in (steps.range_row, steps.range_start, steps.range_stop)
    )
    length = max(len(end_s), 1)
    change = np.bincount(starts, minlength=length) - np.bincount(stops - 1, minlength=length)
    counts = np.cumsum(change)[: max(len(end_s) - 1, 0)].astype(np.int64)
    order = np.lexsort((starts, rows))
    rows, starts, stops = rows[order], starts[order], stops[order]
    same = rows[1:] == rows[:-1]
    gaps = end_s[starts[1:][same]] - end_s[stops[:-1][same] - 1]
    values: Floats = np.concatenate((np.diff(end_s), gaps))
    return values, np.concatenate((counts, np.ones(len(gaps), dtype=np.int64)))


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """Per-request figures, one element per row of the recorder; NaN where there is none."""

    ttft_s: Floats
    tpot_s: Floats
    e2e_s: Floats
    queueing_s: Floats


def request_times(recorder: Recorder) -> RequestTimes:
    """The latencies of every request."""
    columns = recorder.columns
    arrival, scheduled, first, finish = (
        np.array(column, dtype=np.float64)
        for column in (
            columns.arrival_s,
            columns.first_scheduled_s,
            columns.first_token_s,
            columns.finish_s,
        )
    )
    later_tokens = np.array(columns.num_output_tokens, dtype=np.float64) - 1
    tpot = np.full(len(columns), np.nan)
    np.divide(finish - first, later_tokens, out=tpot, where=later_tokens > 0)
    front_s = recorder.front_end_s
    return RequestTimes(
        first - arrival + front_s, tpot, finish - arrival + front_s, scheduled - arrival
    )


@dataclass(frozen=True, slots=True)
class Terms:
    """What a run is held against: limits per request in seconds, and what its GPUs take.

    `num_gpus` are all replicas' together; `price_per_gpu_h` is in any currency.
    """

    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None
    slo_e2e_s: float | None = None
    num_gpus: int = 1
    gpu_power_w: float | None = None
    price_per_gpu_h: float | None = None


NO_TERMS = Terms()


def _met(times: RequestTimes, done: NDArray[np.bool_], terms: Terms) -> NDArray[np.bool_] | None:
    """Which requests met every limit; None without any. One token has no TPOT to miss."""
    limits = (
        (times.ttft_s, terms.slo_ttft_s),
        (times.tpot_s, terms.slo_tpot_s),
        (times.e2e_s, terms.slo_e2e_s),
    )
    if all(limit is None for _, limit in limits):
        return None
    met = done.copy()
    for values, limit in limits:
        if limit is not None:
            met &= ~(values > limit)
    return met


def _fairness(tenants: Sequence[str | None], tokens: Ints) -> float | None:
    """Jain, Chiu, Hawe, "A quantitative measure of fairness" (DEC TR-301, 1984)."""
    names = sorted({tenant for tenant in tenants if tenant is not None})
    if not names:
        return None
    number = {name: index for index, name in enumerate(names)}
    rows = [row for row, tenant in enumerate(tenants) if tenant is not None]
    served = np.zeros(len(names))
    np.add.at(served, [number[str(tenants[row])] for row in rows], tokens[rows])
    return float(served.sum() ** 2 / (len(names) * (served**2).sum())) if served.any() else None


def summarize(recorder: Recorder, terms: Terms = NO_TERMS) -> Summary:
    """The figures of a run; latencies are over finished requests, ITL over all tokens."""
    columns = recorder.columns
    reasons: Sequence[str | None] = columns.reason
    done = np.array([reason not in (None, "abort", "refused") for reason in reasons], dtype=bool)
    times = request_times(recorder)
    arrival = np.array(columns.arrival_s, dtype=np.float64)
    finish = np.array(columns.finish_s, dtype=np.float64)
    prompts, outputs = (
        np.array(column, dtype=np.int64)
        for column in (columns.num_prompt_tokens, columns.num_output_tokens)
    )
    num_finished = int(done.sum())
    duration_s = float(finish[done].max() - arrival.min()) if num_finished else 0.0
    prompt_tokens, output_tokens = int(prompts[done].sum()), int(outputs[done].sum())
    per_s = 1 / duration_s if duration_s else 0.0
    admitted = np.array(columns.replica, dtype=np.int64) >= 0
    hit_tokens = sum(columns.prefix_hit_tokens)
    spread = [intervals(steps) for steps in recorder.steps]
    blocks = recorder.num_blocks - 1
    busy_s = sum(use.busy_s for use in recorder.kv_use)
    tpot = times.tpot_s[done]
    met = _met(times, done, terms)
    gpu_s = duration_s * terms.num_gpus
    return Summary(
        num_requests=len(columns),
        num_finished=num_finished,
        num_aborted=sum(reason == "abort" for reason in reasons),
        num_refused=recorder.num_refused,
        num_steps=sum(len(steps.end_s) for steps in recorder.steps),
        duration_s=duration_s,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        requests_per_s=num_finished * per_s,
        output_tokens_per_s=output_tokens * per_s,
        total_tokens_per_s=(prompt_tokens + output_tokens) * per_s,
        ttft_s=distribution(times.ttft_s[done]),
        tpot_s=distribution(tpot[~np.isnan(tpot)]),
        itl_s=weighted_distribution(
            np.concatenate([values for values, _ in spread]),
            np.concatenate([counts for _, counts in spread]),
        ),
        e2e_s=distribution(times.e2e_s[done]),
        queueing_s=distribution(times.queueing_s[done]),
        num_kv_blocks=blocks,
        kv_use_mean=sum(use.block_seconds for use in recorder.kv_use) / (busy_s * blocks)
        if busy_s
        else 0.0,
        kv_use_max=max(use.max_blocks for use in recorder.kv_use) / blocks,
        prefix_hit_tokens=hit_tokens,
        prefix_hit_rate=hit_tokens / max(int(prompts[admitted].sum()), 1),
        num_preemptions=sum(columns.num_preemptions),
        recomputed_tokens=sum(columns.recomputed_tokens),
        normalized_latency_s=distribution(times.e2e_s[done] / outputs[done]),
        busy_fraction=sum(map(_busy_s, recorder.steps)) / (duration_s * len(recorder.steps))
        if duration_s
        else 0.0,
        tokens_per_step=sum(steps.num_batched_tokens for steps in recorder.steps)
        / max(sum(len(steps.end_s) for steps in recorder.steps), 1),
        goodput_requests_per_s=None if met is None else int(met.sum()) * per_s,
        slo_attainment=None if met is None else float(met.sum()) / max(len(columns), 1),
        fairness=_fairness(columns.tenant, np.where(done, prompts + outputs, 0)),
        energy_j_per_output_token=_per_token(terms.gpu_power_w, gpu_s, output_tokens),
        cost_per_million_output_tokens=_per_token(
            None if terms.price_per_gpu_h is None else terms.price_per_gpu_h / 3600 * 1e6,
            gpu_s,
            output_tokens,
        ),
    )


def _busy_s(steps: Steps) -> float:
    """Seconds in which any step ran; steps that overlap count once."""
    groups = steps.groups
    last = np.cumsum(np.array(groups.num_steps)) - 1
    if not len(last):
        return 0.0
    end_s = np.array(steps.end_s)[last]
    begin_s = np.maximum(np.array(groups.start_s), np.concatenate(([-np.inf], end_s[:-1])))
    return float((end_s - begin_s).sum())


def _per_token(rate_per_s: float | None, gpu_s: float, num_tokens: int) -> float | None:
    return None if rate_per_s is None or not num_tokens else rate_per_s * gpu_s / num_tokens
