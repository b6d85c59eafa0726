"""Figures of a trace: number, rate, lengths, and repeated prefixes."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sundog.sim.trace.record import TraceRequest

Floats = NDArray[np.float64]
NUM_BINS = 48
BARS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Description:
    """Seconds, tokens and shares; histograms as counts.

    `burstiness` is the coefficient of variation of the gaps between arrivals: 1 for Poisson's.
    `ideal_hit_rate` is the share of prompt tokens that an unlimited prefix cache would find, None if contents
    are unknown; only full blocks count. `over_time` counts arrivals in equal parts of the span, the
    histograms lengths in bins of equal ratio up to the largest.
    """

    num_requests: int
    span_s: float
    rate_per_s: float
    burstiness: float
    prompt_tokens: dict[str, float]
    output_tokens: dict[str, float]
    ideal_hit_rate: float | None
    num_sessions: int
    tenants: dict[str, int]
    over_time: list[int]
    prompt_histogram: list[int]
    output_histogram: list[int]


def describe(trace: Iterable[TraceRequest]) -> Description:
    """Read a trace once and describe it. O(requests + hash ids)."""
    arrivals: list[float] = []
    prompts: list[int] = []
    outputs: list[int] = []
    sessions: set[str] = set()
    tenants: Counter[str] = Counter()
    seen: set[int] = set()
    hit_tokens = known_tokens = 0
    for request in trace:
        arrivals.append(request.arrival_s)
        prompts.append(request.num_prompt_tokens)
        outputs.append(request.num_output_tokens)
        if request.session is not None:
            sessions.add(request.session)
        if request.tenant is not None:
            tenants[request.tenant] += 1
        if request.hash_ids is not None:
            known_tokens += request.num_prompt_tokens
            hit_tokens += _hit(request, seen)
    times, gaps = np.array(arrivals), np.diff(np.array(arrivals))
    span_s = float(times[-1] - times[0]) if len(times) else 0.0
    return Description(
        num_requests=len(arrivals),
        span_s=span_s,
        rate_per_s=len(arrivals) / span_s if span_s else 0.0,
        burstiness=float(gaps.std() / gaps.mean()) if span_s else 0.0,
        prompt_tokens=_lengths(np.array(prompts)),
        output_tokens=_lengths(np.array(outputs)),
        ideal_hit_rate=hit_tokens / known_tokens if known_tokens else None,
        num_sessions=len(sessions),
        tenants=dict(sorted(tenants.items())),
        over_time=np.histogram(times, NUM_BINS)[0].tolist() if span_s else [],
        prompt_histogram=_histogram(np.array(prompts)),
        output_histogram=_histogram(np.array(outputs)),
    )


def _hit(request: TraceRequest, seen: set[int]) -> int:
    assert request.hash_ids is not None
    hit = 0
    for block in request.hash_ids:
        if block not in seen:
            break
        hit += request.hash_block_tokens
    seen.update(request.hash_ids)
    size = request.hash_block_tokens
    return min(hit, request.num_prompt_tokens // size * size)


def _lengths(values: "NDArray[Any]") -> dict[str, float]:
    if not len(values):
        return {}
    p50, p90, p99 = (float(value) for value in np.percentile(values, (50, 90, 99)))
    return {"mean": float(values.mean()), "p50": p50, "p90": p90, "p99": p99, "max": int(values.max())}


def _histogram(values: "NDArray[Any]") -> list[int]:
    if not len(values):
        return []
    counts: list[int] = np.histogram(np.log(values), NUM_BINS, (0.0, float(np.log(max(values.max(), 2)))))[
        0
    ].tolist()
    return counts


def bars(counts: list[int]) -> str:
    """Return counts as a line of small bars, the highest full."""
    most = max(counts, default=0) or 1
    return "".join(BARS[-(-count * (len(BARS) - 1) // most)] for count in counts)
