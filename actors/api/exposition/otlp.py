"""Where spans go: a collector that speaks OTLP, by HTTP or by gRPC.

Spans are sent in batches by a thread of OpenTelemetry's. Law: a collector that is slow, down or wrong costs
its spans and one line of the log; requests notice nothing.
"""

import logging
import os
from collections.abc import Sequence
from urllib.parse import urlsplit

from opentelemetry.sdk.environment_variables import (
    OTEL_EXPORTER_OTLP_TIMEOUT,
    OTEL_EXPORTER_OTLP_TRACES_PROTOCOL,
    OTEL_EXPORTER_OTLP_TRACES_TIMEOUT,
)
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from actors.config import ConfigError

log = logging.getLogger("sundog.api")

TIMEOUT_S = 5.0
"""To send one batch, tries included; the end of a server waits for the last one."""
OPTION = "--otlp-traces-endpoint"


def tracer_provider(endpoint: str) -> TracerProvider:
    """What sends spans to `endpoint`; raises ConfigError for one that nothing can be sent to.

    OpenTelemetry's own variables say the rest: sampling, names, headers, the size of batches.
    """
    exporter = ToldExporter(exporter_to(endpoint), endpoint)
    # What its loggers say of each batch is said once, by the exporter above.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    named = os.environ.get("OTEL_SERVICE_NAME") or "sundog"
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: named}))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def exporter_to(endpoint: str) -> SpanExporter:
    """By gRPC where the URL or OpenTelemetry's variable says so, else by HTTP; raises ConfigError."""
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
    """Says in one line that spans get lost, and in another that they arrive again."""

    def __init__(self, exporter: SpanExporter, endpoint: str) -> None:
        self._exporter = exporter
        self._endpoint = endpoint
        self._num_lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch, or lose it."""
        result = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS:
            if not self._num_lost:
                log.warning(
                    "spans of requests cannot be sent to %s and are lost; requests go on", self._endpoint
                )
            self._num_lost += len(spans)
        elif self._num_lost:
            log.info("spans are sent to %s again; %d were lost", self._endpoint, self._num_lost)
            self._num_lost = 0
        return result

    def shutdown(self) -> None:
        """Send nothing more."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing is kept here."""
        return self._exporter.force_flush(timeout_millis)
