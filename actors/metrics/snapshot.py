"""Snapshot for the live page, in JSON: engines, requests and why they wait, holders of blocks.

Cost: O(requests shown and blocks held), a few milliseconds for 20,000 blocks, and only while a page is open.
"""

from collections.abc import Iterable, Mapping, Sequence

from sundog.actors.engine.reports import ActorReport
from sundog.actors.metrics.forecast import Accuracy, FirstToken
from sundog.actors.metrics.measured import Measured, percentiles, short
from sundog.actors.metrics.metrics import Metrics
from sundog.actors.metrics.totals import EngineTotals

MOST_SHOWN = 300
"""Most running and most waiting requests to show; the others are counted."""
NUM_ENDED, NUM_MEASURED = 30, 100

Json = dict[str, object]


def snapshot(
    metrics: Metrics, time_s: float, forecasts: Mapping[str, FirstToken], accuracy: Accuracy | None = None
) -> Json:
    """Return the snapshot at `time_s`; `forecasts` are seconds from then to first tokens."""
    running = [request for request in metrics.requests.values() if request.is_running]
    waiting = waiting_in_order(metrics)
    shown = running[:MOST_SHOWN]
    lacks = {each.blocked.request_id: each.blocked.reason for each in metrics.engines if each.blocked}
    recent = metrics.recent
    return {
        "time_s": time_s,
        "engines": [_engine(engine, time_s) for engine in metrics.engines],
        "running": [_running(request, time_s) for request in shown],
        "num_running": len(running),
        "waiting": [
            _waiting(
                request,
                time_s,
                lacks,
                forecasts.get(request.request_id),
                waiting[place - 1] if place else None,
            )
            for place, request in enumerate(waiting[:MOST_SHOWN])
        ],
        "num_waiting": len(waiting),
        "blocks": [_blocks(shown, number) for number in range(len(metrics.engines))],
        "ended": [_ended(*each) for each in list(recent.ended)[: -NUM_ENDED - 1 : -1]],
        **_by_tenant(metrics),
        "ttft_s": percentiles((ttft_s, 1) for ttft_s in recent.ttft_s),
        "itl_s": percentiles(recent.gaps),
        "forecasts": None if accuracy is None or accuracy.judged is None else accuracy.judged._asdict(),
    }


def waiting_in_order(metrics: Metrics) -> list[Measured]:
    """Return waiting requests in their probable order: preempted ones first, then by the policy's ranks."""
    waiting = [request for request in metrics.requests.values() if not request.is_running]
    ranked = [(request.rank, place) for place, request in enumerate(waiting) if request.rank is not None]
    others = [request for request in waiting if request.rank is None]
    in_order = (*(waiting[place] for _, place in sorted(ranked)), *others)
    return sorted(in_order, key=lambda request: request.num_preemptions == 0)


def actors_shown(reports: Iterable[tuple[str, ActorReport]]) -> list[Json]:
    """Return each actor's mailbox statistics, and its messages handled up to `at_s` on its own clock."""
    return [
        {
            "place": place,
            "name": each.actor,
            "num_waiting": each.num_waiting,
            "most_waiting": each.most_waiting,
            "num_handled": each.num_handled,
            "at_s": each.at_s,
        }
        for place, each in reports
    ]


def _engine(engine: EngineTotals, time_s: float) -> Json:
    next_s = engine.next_start_s
    return {
        "is_up": engine.is_up,
        "why_down": engine.why_down,
        "next_start_in_s": None if next_s is None else max(next_s - time_s, 0.0),
        "has_other_policy": engine.has_other_policy,
        "num_restarts": engine.num_restarts,
        "num_running": engine.num_running,
        "num_waiting": engine.num_waiting,
        "num_blocks": engine.num_blocks,
        "block_size": engine.block_size,
        "kv_usage": engine.kv_usage,
        "blocked_by": engine.blocked_by,
        "num_steps": engine.num_steps,
        "busy_s": engine.busy_s,
        "num_prompt_tokens": engine.num_prompt_tokens,
        "num_cached_tokens": engine.num_cached_tokens,
        "num_generation_tokens": engine.num_generation_tokens,
        "num_preemptions": engine.num_preemptions,
        "ended": dict(engine.ended),
    }


def _request(request: Measured) -> Json:
    return {
        "id": request.request_id,
        "tenant": request.tenant,
        "adapter": request.adapter,
        "replica": request.replica,
        "num_prompt_tokens": request.num_prompt_tokens,
        "num_cached_tokens": request.num_cached_tokens,
        "num_tokens": request.num_tokens,
        "max_tokens": request.max_tokens,
        "num_preemptions": request.num_preemptions,
    }


def _running(request: Measured, time_s: float) -> Json:
    return _request(request) | {
        "is_decoding": request.has_caught_up,
        "num_computed_tokens": request.num_computed_tokens,
        "num_blocks": len(request.block_ids),
        "age_s": time_s - request.arrival_s,
        "ttft_s": request.ttft_s,
        "tpot_s": request.tpot_s,
    }


def _waiting(
    request: Measured,
    time_s: float,
    lacks: Mapping[str, str],
    forecast: FirstToken | None,
    before: Measured | None,
) -> Json:
    age_s = time_s - request.arrival_s
    return _request(request) | {
        "age_s": age_s,
        "lacks": lacks.get(request.request_id),
        "behind": None if before is None else before.request_id,
        "rank": request.rank,
        "num_losses": request.num_losses,
        "forecast_ttft_s": None if forecast is None else age_s + forecast.expected_s,
        "forecast_range_s": None if forecast is None else (age_s + forecast.least_s, age_s + forecast.most_s),
    }


def _ended(request: Measured, reason: str, time_s: float) -> Json:
    return _request(request) | {
        "reason": reason,
        "time_s": time_s,
        "ttft_s": request.ttft_s,
        "tpot_s": request.tpot_s,
        "e2e_s": time_s - request.arrival_s,
    }


def _by_tenant(metrics: Metrics) -> Json:
    """Return each tenant's running and waiting requests and blocks, and its latest ended requests.

    An ended request has its tenant, TTFT, TPOT, and whether it met its own limits; without TTFT it failed.
    """
    tenants: dict[str | None, list[int]] = {}
    for request in metrics.requests.values():
        counts = tenants.setdefault(request.tenant, [0, 0, 0])
        counts[not request.is_running] += 1
        counts[2] += len(request.block_ids)
    return {
        "tenants": [(name, *counts) for name, counts in tenants.items()],
        "measured": [
            (each.tenant, short(each.ttft_s), short(each.tpot_s), each.is_within(end_s))
            for each, reason, end_s in list(metrics.recent.ended)[-NUM_MEASURED:]
            if reason != "abort"
        ],
    }


def _blocks(running: Sequence[Measured], replica: int) -> list[tuple[int, int, int]]:
    """Return the holders of blocks: (first block, number, index into `running` or -1 for several)."""
    held = sorted(
        (block, number)
        for number, request in enumerate(running)
        if request.replica == replica
        for block in request.block_ids
    )
    return list(_spans(_single(held)))


def _single(held: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return each block once; a block that several requests hold has no owner."""
    single: list[tuple[int, int]] = []
    for block, holder in held:
        if single and single[-1][0] == block:
            single[-1] = (block, -1)
        else:
            single.append((block, holder))
    return single


def _spans(held: Sequence[tuple[int, int]]) -> Iterable[tuple[int, int, int]]:
    first = count = holder = 0
    for block, who in held:
        if count and block == first + count and who == holder:
            count += 1
            continue
        if count:
            yield first, count, holder
        first, count, holder = block, 1, who
    if count:
        yield first, count, holder
