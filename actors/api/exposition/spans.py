"""OpenTelemetry spans of requests: the HTTP answer, and the engine's work for it.

An answer is a span of kind SERVER that continues its client's trace (W3C `traceparent` in and out). Its
children are the engine's requests, spans `llm_request` with vLLM's attributes at the instants that /metrics
counts, and below those `queue`, `prefill` and `decode`. A trace that its client does not sample is passed on
and not recorded. Imported only if spans are switched on.
"""

import logging
import os
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.sdk.environment_variables import (
    OTEL_EXPORTER_OTLP_TIMEOUT,
    OTEL_EXPORTER_OTLP_TRACES_PROTOCOL,
    OTEL_EXPORTER_OTLP_TRACES_TIMEOUT,
)
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from quart import Quart, Response, after_this_request, request

from sundog.actors.api.exposition.http_metrics import UNCOUNTED
from sundog.actors.api.requests import current_request
from sundog.actors.config import ConfigError
from sundog.actors.kernel.clock import now_s
from sundog.actors.metrics.measured import Measured

log = logging.getLogger("sundog.api")

TIMEOUT_S = 5.0
"""Seconds to send one batch, retries included; a stopping server waits for the last one."""
OPTION = "--otlp-traces-endpoint"


def tracer_provider(endpoint: str) -> TracerProvider:
    """Return the provider that sends spans to `endpoint`; raises ConfigError for an unusable one.

    OpenTelemetry's own variables set the rest: sampling, names, headers, the size of batches.
    """
    exporter = ToldExporter(exporter_to(endpoint), endpoint)
    # What its loggers say of each batch is said once, by the exporter above.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    named = os.environ.get("OTEL_SERVICE_NAME") or "sundog"
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: named}))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def exporter_to(endpoint: str) -> SpanExporter:
    """Return an exporter for gRPC or HTTP: the URL's scheme or OpenTelemetry's variable selects it. Raises
    ConfigError.
    """
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https", "grpc") or not parts.hostname:
        raise ConfigError(f"{OPTION} is {endpoint!r}: give a URL such as http://localhost:4318")
    chosen = os.environ.get(OTEL_EXPORTER_OTLP_TRACES_PROTOCOL)
    protocol = chosen or ("grpc" if parts.scheme == "grpc" else "http/protobuf")
    if protocol not in ("grpc", "http/protobuf"):
        known = "grpc or http/protobuf"
        raise ConfigError(f"{OTEL_EXPORTER_OTLP_TRACES_PROTOCOL} is {protocol!r}: it must be {known}")
    # Explicit arguments go before OpenTelemetry's variables.
    named = (OTEL_EXPORTER_OTLP_TRACES_TIMEOUT, OTEL_EXPORTER_OTLP_TIMEOUT)
    timeout_s = None if any(name in os.environ for name in named) else TIMEOUT_S
    if protocol == "grpc":
        return _grpc_exporter(endpoint, timeout_s)
    if parts.scheme == "grpc":
        raise ConfigError(f"{OPTION} is {endpoint!r}, but the protocol is {protocol}: begin it with http://")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    path = parts.path if parts.path not in ("", "/") else "/v1/traces"
    return OTLPSpanExporter(endpoint=parts._replace(path=path).geturl(), timeout=timeout_s)


def _grpc_exporter(endpoint: str, timeout_s: float | None) -> SpanExporter:
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    except ModuleNotFoundError:
        missing = "opentelemetry-exporter-otlp-proto-grpc"
        raise ConfigError(
            f"{OPTION} by gRPC needs {missing}: pip install it, or give http://…:4318"
        ) from None
    is_secure = endpoint.startswith("https:")
    exporter: SpanExporter = OTLPSpanExporter(endpoint=endpoint, insecure=not is_secure, timeout=timeout_s)
    return exporter


class ToldExporter(SpanExporter):
    """Exporter that logs one line when spans are lost, and one when they are delivered again."""

    def __init__(self, exporter: SpanExporter, endpoint: str) -> None:
        self._exporter = exporter
        self._endpoint = endpoint
        self._num_lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch of spans; drop it if that fails."""
        result = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS:
            if not self._num_lost:
                log.warning(
                    "spans cannot be sent to %s and are lost; requests are unaffected", self._endpoint
                )
            self._num_lost += len(spans)
        elif self._num_lost:
            log.info("spans are sent to %s again; %d were lost", self._endpoint, self._num_lost)
            self._num_lost = 0
        return result

    def shutdown(self) -> None:
        """Stop sending spans."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Return True at once: no spans are kept here."""
        return self._exporter.force_flush(timeout_millis)


W3C = TraceContextTextMapPropagator()
UNTRACED = UNCOUNTED | {"/dashboard/events"}

Attributes = dict[str, str | int | float]


class Spans:
    """Spans of one server's requests."""

    def __init__(self, tracer: Tracer, model: str) -> None:
        self._tracer, self._model = tracer, model

    def install(self, app: Quart) -> None:
        """Trace every answer of the app; install before anything that may refuse a request."""
        app.before_request(self._begin)

    async def _begin(self) -> None:
        rule = request.url_rule
        if rule is None or rule.rule in UNTRACED:
            return
        served = current_request()
        span = self._tracer.start_span(
            f"{request.method} {rule.rule}",
            W3C.extract(served.headers, Context()),
            SpanKind.SERVER,
            {"http.request.method": request.method, "http.route": rule.rule, "url.path": request.path},
        )
        carried: dict[str, str] = {}
        W3C.inject(carried, set_span_in_context(span, Context()))
        served.trace_headers = tuple(carried.items())
        served.at_end.callback(span.end)

        @after_this_request  # type: ignore[arg-type]  # no route here returns a Response of Werkzeug's
        async def note(response: Response) -> Response:
            response.headers.update(carried)
            span.set_attribute("http.response.status_code", response.status_code)
            if response.status_code >= 500:
                span.set_status(StatusCode.ERROR)
            return response

    def request_ended(self, ended: Measured, reason: str, time_s: float) -> None:
        """Make the spans of an engine's request that ended at `time_s` on the run's clock."""
        parent = W3C.extract(dict(ended.trace_headers), Context())
        epoch_ns = time.time_ns() - round(now_s() * 1e9)
        begin_ns = epoch_ns + round(ended.arrival_s * 1e9)
        span = self._tracer.start_span("llm_request", parent, SpanKind.SERVER, start_time=begin_ns)
        if span.is_recording():
            span.set_attributes(self._attributes(ended, reason, time_s))
            if reason == "error":
                span.set_status(Status(StatusCode.ERROR, "the engine failed, or this request in it"))
            self._add_parts(span, ended, epoch_ns, time_s)
        span.end(epoch_ns + round(time_s * 1e9))

    def _add_parts(self, span: Span, ended: Measured, epoch_ns: int, time_s: float) -> None:
        """Add child spans for queue, prefill and decode, as far as the request came."""
        parts = {"queue": ended.arrival_s, "prefill": ended.scheduled_s, "decode": ended.first_s}
        begun = [(name, begin_s) for name, begin_s in parts.items() if begin_s is not None]
        ends_s = [*(begin_s for _, begin_s in begun[1:]), time_s]
        inside = set_span_in_context(span, Context())
        for (name, begin_s), end_s in zip(begun, ends_s, strict=True):
            part = self._tracer.start_span(name, inside, start_time=epoch_ns + round(begin_s * 1e9))
            part.end(epoch_ns + round(end_s * 1e9))

    def _attributes(self, ended: Measured, reason: str, time_s: float) -> Attributes:
        """Return the attributes that vLLM 0.32 sets (its `tracing` package), for events that occurred."""
        scheduled_s, first_s, last_s = ended.times_s(time_s)
        sampling = ended.sampling
        attributes: Attributes = {
            "gen_ai.request.id": ended.request_id,
            "gen_ai.response.model": ended.adapter or self._model,
            "gen_ai.request.max_tokens": ended.max_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.usage.prompt_tokens": ended.num_prompt_tokens,
            "gen_ai.usage.completion_tokens": ended.num_tokens,
            "gen_ai.latency.e2e": time_s - ended.arrival_s,
            "gen_ai.latency.time_in_queue": scheduled_s - ended.arrival_s,
            "sundog.finish_reason": reason,
            "sundog.cached_tokens": ended.num_cached_tokens,
            "sundog.num_preemptions": ended.num_preemptions,
        }
        if ended.scheduled_s is not None:
            attributes["gen_ai.latency.time_in_model_prefill"] = first_s - scheduled_s
            attributes["gen_ai.latency.time_in_model_inference"] = last_s - scheduled_s
        if ended.ttft_s is not None:
            attributes["gen_ai.latency.time_to_first_token"] = ended.ttft_s
            attributes["gen_ai.latency.time_in_model_decode"] = last_s - first_s
        if ended.tenant is not None:
            attributes["sundog.tenant"] = ended.tenant
        return attributes
