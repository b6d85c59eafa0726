"""Reports of other tools, each a JSON document: their requests, and remarks on missing data.

`vllm bench serve` and SGLang's bench (lists of one length), guidellm (a list of requests for each benchmark),
and OpenTelemetry spans in OTLP's JSON (its conventions for generative AI).
"""

import math
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sundog.sim.trace.record import TraceError, TraceRequest, arrival_problem, default_id, tokens_problem


class ReportedRequest(NamedTuple):
    """Request of a report: its time, in seconds of any clock, its lengths, and its conversation."""

    arrival_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    session: str | None = None


Reading = tuple[list[TraceRequest], tuple[str, ...]]
"""Requests, and remarks on left-out or missing data, one line each."""


def requests_of(path: str, asked: Iterable[ReportedRequest], has_times: bool = True) -> list[TraceRequest]:
    """Return requests in order of arrival, with times relative to the first; simultaneous ones keep their
    order.
    """
    rows = list(asked)
    if not rows:
        raise TraceError(path, 1, "no request was answered")
    for number, row in enumerate(rows, 1):
        if not math.isfinite(row.arrival_s):
            raise TraceError(path, number, f"row {number}: an instant is not finite", "arrival")
    first_s = min(row.arrival_s for row in rows) if has_times else 0.0
    found: list[TraceRequest] = []
    for index, row in enumerate(sorted(rows, key=lambda row: row.arrival_s)):
        arrival_s = row.arrival_s - first_s if has_times else 0.0
        request = TraceRequest(
            default_id(index), arrival_s, row.num_prompt_tokens, row.num_output_tokens, session=row.session
        )
        check_request(path, index + 1, request, found[-1].arrival_s if found else 0.0)
        found.append(request)
    return found


def check_request(path: str, row: int, request: TraceRequest, previous_s: float) -> None:
    """Raise TraceError for a row with an invalid arrival or length."""
    problems = (
        (arrival_problem(request.arrival_s, previous_s), "arrival"),
        (tokens_problem(request.num_prompt_tokens, "prompt"), "prompt tokens"),
        (tokens_problem(request.num_output_tokens, "output"), "output tokens"),
    )
    for reason, column in problems:
        if reason:
            raise TraceError(path, row, f"row {row}: {reason}", column)


def left_out(path: str, num_failed: int, num_all: int) -> tuple[str, ...]:
    """Return the remark on failed requests, if there are any."""
    if not num_failed:
        return ()
    return (f"{path}: {num_failed:,} of {num_all:,} requests failed, and are left out",)


def bench_result(path: str, values: dict[str, Any]) -> Reading:
    """Read the requests of a detailed result of `vllm bench serve`, or of SGLang's bench, from its lists of
    lengths.

    `start_times` are on any clock; without them everything arrives at once. Failed requests have an error, or
    no output token.
    """
    prompts, outputs = values.get("input_lens"), values.get("output_lens")
    for name, column in (("input_lens", prompts), ("output_lens", outputs)):
        if not isinstance(column, list) or not column:
            raise TraceError(path, 1, "it must be a list: save the result with details", name)
        if not all(type(value) is int for value in column):
            raise TraceError(path, 1, "it must be a list of whole numbers", name)
    assert prompts is not None and outputs is not None
    starts = values.get("start_times")
    starts = [0.0] * len(prompts) if starts is None else starts
    if not isinstance(starts, list) or not all(type(s) in (int, float) for s in starts):
        raise TraceError(path, 1, "it must be a list of seconds", "start_times")
    if not len(prompts) == len(outputs) == len(starts):
        raise TraceError(
            path, 1, f"{len(prompts)} input_lens, {len(outputs)} output_lens and {len(starts)} start_times"
        )
    if not all(map(math.isfinite, starts)):
        raise TraceError(path, 1, "an instant is not finite", "start_times")
    errors = values.get("errors")
    if not isinstance(errors, list) or len(errors) != len(prompts):
        errors = [""] * len(prompts)
    asked = [
        ReportedRequest(float(start), prompt, output)
        for start, prompt, output, error in zip(starts, prompts, outputs, errors, strict=True)
        if not error and output != 0
    ]
    remarks = left_out(path, len(prompts) - len(asked), len(prompts))
    if "start_times" not in values:
        rate = values.get("request_rate")
        given = f"--request-rate {rate:g}" if _is_rate(rate) else "--request-rate"
        remarks += (f"{path} does not say when requests arrived: all arrive at once; {given} gives arrivals",)
    return requests_of(path, asked), remarks


def _is_rate(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def guidellm_report(path: str, values: dict[str, Any]) -> Reading:
    """Read the requests of a guidellm report of one benchmark; several would be one server at several loads.

    A request has `request_start_time` (`start_time` in older reports), `prompt_tokens` and `output_tokens`.
    """
    benchmarks = values.get("benchmarks")
    if not isinstance(benchmarks, list) or not benchmarks or not isinstance(benchmarks[0], dict):
        raise TraceError(path, 1, "it must be a list of benchmarks", "benchmarks")
    if len(benchmarks) > 1:
        raise TraceError(
            path,
            1,
            f"the report has {len(benchmarks)} benchmarks run one after another: keep one of them in a "
            "report of"
            " its own",
            "benchmarks",
        )
    requests = benchmarks[0].get("requests")
    if not isinstance(requests, dict) or not isinstance(requests.get("successful"), list):
        raise TraceError(path, 1, "it has no list of successful requests", "requests")
    asked = []
    for number, row in enumerate(requests["successful"], 1):
        start = _first_of(row, "request_start_time", "start_time")
        asked.append(
            ReportedRequest(
                _number(path, number, start, "request_start_time"),
                _whole(path, number, _first_of(row, "prompt_tokens"), "prompt_tokens"),
                _whole(path, number, _first_of(row, "output_tokens"), "output_tokens"),
            )
        )
    failed = sum(len(requests.get(kind) or ()) for kind in ("errored", "incomplete"))
    return requests_of(path, asked), left_out(path, failed, failed + len(asked))


INPUT_TOKENS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
OUTPUT_TOKENS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
SESSION = ("gen_ai.conversation.id", "session.id")
ERROR_STATUS = (2, "STATUS_CODE_ERROR")


def otlp_spans(path: str, values: dict[str, Any]) -> Reading:
    """Read the spans with token counts of an OTLP export in JSON.

    A span has `gen_ai.usage.input_tokens` and `gen_ai.usage.output_tokens`, also by their older names; it
    arrives at its `startTimeUnixNano`. A parent span that counts the same tokens is left out.
    """
    spans = list(_spans(path, values))
    parents = {span.get("parentSpanId") for span, counts in spans if counts is not None}
    asked, num_failed = list[tuple[int, int, int, str | None]](), 0
    for number, (span, counts) in enumerate(spans, 1):
        if counts is None or span.get("spanId") in parents:
            continue
        prompt, output, session = counts
        if (span.get("status") or {}).get("code") in ERROR_STATUS or output == 0:
            num_failed += 1
            continue
        start_ns = span.get("startTimeUnixNano")
        if not isinstance(start_ns, int | str) or not str(start_ns).isdigit():
            raise TraceError(path, number, f"span {number}: {start_ns!r} is no instant", "startTimeUnixNano")
        asked.append((int(start_ns), prompt, output, session))
    first_ns = min((start_ns for start_ns, *_ in asked), default=0)
    rows = [
        ReportedRequest((start_ns - first_ns) / 1e9, prompt, output, session)
        for start_ns, prompt, output, session in asked
    ]
    return requests_of(path, rows), left_out(path, num_failed, num_failed + len(rows))


Counts = tuple[int, int, str | None]


def _spans(path: str, values: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Counts | None]]:
    for resource in values.get("resourceSpans") or ():
        for scope in resource.get("scopeSpans") or resource.get("instrumentationLibrarySpans") or ():
            for span in scope.get("spans") or ():
                attributes = {
                    each.get("key"): _value(each.get("value") or {}) for each in span.get("attributes") or ()
                }
                prompt, output = _first_of(attributes, *INPUT_TOKENS), _first_of(attributes, *OUTPUT_TOKENS)
                if prompt is None or output is None:
                    yield span, None
                    continue
                session = _first_of(attributes, *SESSION)
                number = str(span.get("spanId"))
                yield (
                    span,
                    (
                        _whole(path, 1, prompt, f"{INPUT_TOKENS[0]} of span {number}"),
                        _whole(path, 1, output, f"{OUTPUT_TOKENS[0]} of span {number}"),
                        None if session is None else str(session),
                    ),
                )


def _value(value: dict[str, Any]) -> object:
    """Return an attribute's value; OTLP writes 64-bit integers as texts."""
    for kind, held in value.items():
        if kind == "intValue" and isinstance(held, str) and held.lstrip("-").isdigit():
            return int(held)
        return held
    return None


def _first_of(row: object, *names: str) -> Any:
    if not isinstance(row, dict):
        return None
    return next((row[name] for name in names if row.get(name) is not None), None)


def _number(path: str, row: int, value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TraceError(
            path, row, f"row {row}: {'missing' if value is None else f'{value!r} is no number'}", name
        )
    return float(value)


def _whole(path: str, row: int, value: object, name: str) -> int:
    if type(value) is not int:
        wrong = "missing" if value is None else f"{value!r} is not a whole number"
        raise TraceError(path, row, f"row {row}: {wrong}", name)
    return value


def instant_s(text: str) -> float:
    """Return the seconds since 1970 of an ISO 8601 date, in UTC if it names no zone; ValueError."""
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


DOCUMENTS: dict[str, tuple[str, Callable[[str, dict[str, Any]], Reading]]] = {
    "input_lens": ("vllm-bench", bench_result),
    "benchmarks": ("guidellm", guidellm_report),
    "resourceSpans": ("otlp", otlp_spans),
}
"""Formats of documents by an identifying key: the name, and the reader."""
