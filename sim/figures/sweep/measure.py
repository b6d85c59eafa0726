"""One run in the figures that an experiment compares, without its warm-up."""

import numpy as np
from numpy.typing import NDArray

from sim.figures.metrics import Summary, request_times
from sim.figures.statistics.warmup import num_warmup
from sim.record.recorder import Recorder
from sim.record.rows import finished

Measures = dict[str, float]
PARTS = {"mean": None, "p50": 50.0, "p90": 90.0, "p99": 99.0}
LATENCIES = ("ttft_s", "tpot_s", "e2e_s", "queueing_s")
WHOLE = (
    "output_tokens_per_s",
    "requests_per_s",
    "busy_fraction",
    "saturation",
    "kv_use_mean",
    "prefix_hit_rate",
    "num_preemptions",
    "slo_attainment",
    "goodput_requests_per_s",
    "fairness",
    "cost_per_million_output_tokens",
)
"""Taken from the summary of the whole run, its warm-up included."""
NAMES = (*(f"{name}.{part}" for name in LATENCIES for part in PARTS), *WHOLE)


def measure(recorder: Recorder, summary: Summary, warmup_s: float | None) -> Measures:
    """Latencies of finished requests that arrived after the warm-up, and figures of the whole.

    `warmup_s` None finds its end from the times to the first token, in order of arrival.
    """
    times, columns = request_times(recorder), recorder.columns
    done = finished(columns.reason)
    arrival = np.array(columns.arrival_s, dtype=np.float64)
    if warmup_s is None:
        skipped = num_warmup(times.ttft_s[done])
        kept = done & (np.cumsum(done) > skipped)
    else:
        kept = done & (arrival >= warmup_s)
    found: Measures = {"num_warmup": float(done.sum() - kept.sum())}
    for name in LATENCIES:
        values = getattr(times, name)[kept]
        values = values[~np.isnan(values)]
        for part, percent in PARTS.items():
            found[f"{name}.{part}"] = _part(values, percent)
    for name in WHOLE:
        value = getattr(summary, name)
        found[name] = float("nan") if value is None else float(value)
    return found


def _part(values: NDArray[np.float64], percent: float | None) -> float:
    if not len(values):
        return float("nan")
    return float(values.mean() if percent is None else np.percentile(values, percent))
