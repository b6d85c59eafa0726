"""HTTP requests by route and status, under vLLM's names."""

import collections
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Histogram, Summary
from quart import Quart, Response, request

from sundog.actors.api.requests import current_request

UNCOUNTED = {"/metrics", "/health", "/load", "/ping", "/version"}
FINE_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10),
    *(30, 60),
)
COARSE_S = (0.1, 0.5, 1)


class HttpMetrics:
    """Counts of finished requests; a stream finishes with its last byte. `posted` are POSTs by status
    class, `2xx`.
    """

    def __init__(self, registry: CollectorRegistry, posted: collections.Counter[str]) -> None:
        self._posted = posted
        self._total = Counter(
            "http_requests", "Requests.", ("method", "status", "handler"), registry=registry
        )
        self._sent = Summary(
            "http_request_size_bytes", "Bytes of request bodies.", ("handler",), registry=registry
        )
        self._answered = Summary(
            "http_response_size_bytes", "Bytes of response bodies.", ("handler",), registry=registry
        )
        self._fine = Histogram(
            "http_request_duration_highr_seconds", "Durations.", buckets=FINE_S, registry=registry
        )
        self._coarse = Histogram(
            "http_request_duration_seconds",
            "Durations by route.",
            ("method", "handler"),
            buckets=COARSE_S,
            registry=registry,
        )

    def count(
        self, method: str, status: str, handler: str, num_bytes: tuple[int, int], elapsed_s: float
    ) -> None:
        """Count a finished request; `num_bytes` are those of its body and answer, 0 if unknown."""
        self._total.labels(method, status, handler).inc()
        if method == "POST":
            self._posted[status] += 1
        self._sent.labels(handler).observe(num_bytes[0])
        self._answered.labels(handler).observe(num_bytes[1])
        self._fine.observe(elapsed_s)
        self._coarse.labels(method, handler).observe(elapsed_s)


Count = Callable[[str, str, str, tuple[int, int], float], None]
"""Function that counts a request, here or in another process."""


def count_requests(app: Quart, count: Count) -> None:
    """Count every request of the app."""

    def ended(method: str, status: str, handler: str, num_bytes: tuple[int, int], began_s: float) -> None:
        count(method, status, handler, num_bytes, time.perf_counter() - began_s)

    async def note(response: Response) -> Response:
        rule = request.url_rule
        handler = "none" if rule is None else rule.rule
        if handler not in UNCOUNTED:
            method = request.method if rule is not None else "other"
            status = f"{response.status_code // 100}xx"
            num_bytes = request.content_length or 0, response.content_length or 0
            served = current_request()
            # Of the request itself nothing is kept: a stream may be open for long.
            served.at_end.callback(ended, method, status, handler, num_bytes, served.began_s)
        return response

    app.after_request(note)
