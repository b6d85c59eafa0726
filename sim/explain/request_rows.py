"""A recorded request at an instant, as a row of the live page (`actors/metrics/snapshot.py`)."""

from sim.explain.spans import RequestHistory, RunningSpan

Json = dict[str, object]


def span_at(request: RequestHistory, time_s: float) -> RunningSpan | None:
    """Its span of running at an instant, None while it waits."""
    for span in request.spans:
        if span.start_s <= time_s and (span.end_s is None or time_s < span.end_s):
            return span
    return None


def admission_s(request: RequestHistory, time_s: float) -> float:
    """When it will run."""
    return min((span.start_s for span in request.spans if span.start_s > time_s), default=float("inf"))


def tokens_at(request: RequestHistory, time_s: float) -> tuple[int, int]:
    """How many tokens it has computed, and how many generated."""
    computed = generated = 0
    for span in request.spans:
        if span.start_s > time_s:
            break
        hit, end_s = span.admitted.num_hit_tokens, span.end_s if span.end_s is not None else time_s
        caught_up_s = end_s if span.caught_up_s is None else span.caught_up_s
        prefilled = part(span.start_s, caught_up_s, time_s)
        decoded = part(caught_up_s, end_s, time_s)
        computed = hit + int(prefilled * sum(span.chunks))
        if span.caught_up_s is not None and time_s >= span.caught_up_s:
            new = max(1, int(decoded * span.num_output_tokens)) if span.num_output_tokens else 0
            generated, computed = generated + new, computed + max(new - 1, 0)
    return computed, generated


def part(start_s: float, end_s: float, time_s: float) -> float:
    """How much of a span has passed, from 0 to 1."""
    if end_s <= start_s:
        return float(time_s >= end_s)
    return min(max(time_s - start_s, 0.0) / (end_s - start_s), 1.0)


def tpot_s(request: RequestHistory) -> float | None:
    """From token to token, None with fewer than two."""
    if request.first_token_s is None or request.end_s is None or request.num_output_tokens < 2:
        return None
    return (request.end_s - request.first_token_s) / (request.num_output_tokens - 1)


def request_row(request: RequestHistory, time_s: float) -> Json:
    arrival = request.arrival
    computed, generated = tokens_at(request, time_s)
    begun = [span for span in request.spans if span.start_s <= time_s]
    return {
        "id": request.request_id,
        "tenant": arrival.tenant,
        "adapter": None,
        "replica": request.replica,
        "num_prompt_tokens": arrival.num_prompt_tokens or 0,
        "num_cached_tokens": begun[0].admitted.num_hit_tokens if begun else 0,
        "num_tokens": generated,
        "num_computed_tokens": computed,
        "max_tokens": arrival.max_tokens or 0,
        "num_preemptions": sum(span.preempted is not None and (span.end_s or 0) <= time_s for span in begun),
    }


def running_row(request: RequestHistory, time_s: float, block_size: int) -> Json:
    span, first_s = span_at(request, time_s), request.first_token_s
    has_first = first_s is not None and first_s <= time_s
    computed, generated = tokens_at(request, time_s)
    return request_row(request, time_s) | {
        "is_decoding": span is not None and span.caught_up_s is not None and span.caught_up_s <= time_s,
        "num_blocks": -(-max(computed, 1) // block_size),
        "num_own_blocks": -(-max(computed, 1) // block_size)
        - (0 if span is None else span.admitted.num_hit_tokens // block_size),
        "age_s": time_s - request.arrival.time_s,
        "ttft_s": first_s - request.arrival.time_s if first_s is not None and has_first else None,
        "tpot_s": (time_s - first_s) / (generated - 1) if first_s is not None and generated > 1 else None,
    }


def ended_row(request: RequestHistory) -> Json:
    end_s = request.end_s or 0.0
    first_s = request.first_token_s
    return request_row(request, end_s) | {
        "num_tokens": request.num_output_tokens,
        "reason": request.reason,
        "time_s": end_s,
        "ttft_s": None if first_s is None else first_s - request.arrival.time_s,
        "tpot_s": tpot_s(request),
        "e2e_s": end_s - request.arrival.time_s,
    }
