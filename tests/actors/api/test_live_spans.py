"""Trace spans of requests, as received by a collector from a live server."""

import json
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.live import EMULATED, Live, live
from tests.sundog.test_runs import refused, sundog

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACED = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=kept"}
NOT_SAMPLED = {"traceparent": f"00-{'1' * 32}-{PARENT}-00"}


class Collector(ThreadingHTTPServer):
    """Takes OTLP over HTTP, and keeps the spans; while `fails` it answers 500."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Taker)
        self.spans: list[Any] = []
        self.resources: list[Any] = []
        self.paths: set[str] = set()
        self.fails = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def named(self) -> dict[str, list[Any]]:
        """Spans by their names."""
        found = defaultdict(list)
        for span in self.spans:
            found[span.name].append(span)
        return dict(found)


class Taker(BaseHTTPRequestHandler):
    """One batch."""

    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.paths.add(self.path)
        if not self.server.fails:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.server.resources.append(resource.resource)
                for scope in resource.scope_spans:
                    self.server.spans += scope.spans
        self.send_response(500 if self.server.fails else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(autouse=True)
def _sends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenTelemetry's own variable: batches go ten times a second."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")


@contextmanager
def collecting() -> Iterator[Collector]:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join()


@contextmanager
def traced_server(endpoint: str, *more: str) -> Iterator[Live]:
    with live(*EMULATED, "--otlp-traces-endpoint", endpoint, *more) as server:
        yield server
        server.assert_sound()
        assert server.stop() == 0


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def test_a_request_is_a_trace_of_its_client() -> None:
    """Below the client's span the answer, below it the engine's request, below that its parts, gapless."""
    with collecting() as collector:
        with traced_server(collector.url) as server:
            answer = httpx.post(
                f"{server.url}/v1/completions",
                json={"prompt": "Once", "max_tokens": 5, "temperature": 0.5, "tenant": "alice"},
                headers=TRACED,
            )
            assert server.complete(max_tokens=0).status_code == 400
            assert httpx.get(f"{server.url}/metrics").status_code == 200
        spans = collector.named()
    assert collector.paths == {"/v1/traces"}
    assert {
        each.value.string_value for each in collector.resources[0].attributes if each.key == "service.name"
    } == {"sundog"}
    good, bad = sorted(spans["POST /v1/completions"], key=lambda span: span.start_time_unix_nano)
    (engine,) = spans["llm_request"]
    assert (good.trace_id.hex(), good.parent_span_id.hex(), good.trace_state) == (
        TRACE,
        PARENT,
        "vendor=kept",
    )
    assert answer.headers["traceparent"] == f"00-{TRACE}-{good.span_id.hex()}-01"
    assert answer.headers["tracestate"] == "vendor=kept"
    assert attributes(good)["http.response.status_code"] == 200
    assert attributes(bad)["http.response.status_code"] == 400 and bad.trace_id != good.trace_id
    assert engine.parent_span_id == good.span_id and engine.trace_id == good.trace_id
    parts = [spans[name][0] for name in ("queue", "prefill", "decode")]
    assert all(part.parent_span_id == engine.span_id for part in parts)
    edges = [parts[0].start_time_unix_nano, *(part.end_time_unix_nano for part in parts)]
    assert edges == sorted(edges)
    assert edges[1:3] == [part.start_time_unix_nano for part in parts[1:]]
    assert good.start_time_unix_nano <= edges[0] == engine.start_time_unix_nano
    assert edges[-1] == engine.end_time_unix_nano <= good.end_time_unix_nano
    said = attributes(engine)
    assert said["gen_ai.request.id"] == answer.json()["id"] and said["sundog.tenant"] == "alice"
    assert (said["gen_ai.request.max_tokens"], said["gen_ai.request.temperature"]) == (5, 0.5)
    assert said["gen_ai.usage.prompt_tokens"] == answer.json()["usage"]["prompt_tokens"]
    assert said["gen_ai.usage.completion_tokens"] == 5
    assert said["gen_ai.response.model"] == answer.json()["model"]
    times = {name.rpartition(".")[2]: value for name, value in said.items() if "latency" in name}
    assert times["time_in_queue"] + times["time_in_model_inference"] == pytest.approx(times["e2e"])
    assert times["time_to_first_token"] == pytest.approx(
        times["time_in_queue"] + times["time_in_model_prefill"]
    )
    assert 1e9 * times["e2e"] == pytest.approx(edges[-1] - edges[0], rel=1e-3)


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_what_a_client_does_not_sample_is_passed_on_and_not_kept() -> None:
    """And headers that are no trace begin one; each choice is a request of the engine's; an abort is said."""
    url = "/v1/chat/completions"
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    with collecting() as collector:
        with traced_server(collector.url) as server:
            quiet = httpx.post(f"{server.url}{url}", json=body, headers=NOT_SAMPLED)
            odd = httpx.post(
                f"{server.url}{url}", json=body | {"n": 3}, headers={"traceparent": "00-zz-1"}, timeout=60
            )
            long = {"prompt": "Once", "max_tokens": 4000, "stream": True, "ignore_eos": True}
            with httpx.stream("POST", f"{server.url}/v1/completions", json=long) as stream:
                next(stream.iter_lines())
            server.until_it_says(": abort")
        spans = collector.named()
    assert quiet.headers["traceparent"].startswith(f"00-{'1' * 32}-")
    assert quiet.headers["traceparent"].endswith("-00")
    (chat,) = spans[f"POST {url}"]
    assert odd.headers["traceparent"].startswith(f"00-{chat.trace_id.hex()}-{chat.span_id.hex()}-")
    of_chat = [span for span in spans["llm_request"] if span.parent_span_id == chat.span_id]
    ends = [attributes(span)["sundog.finish_reason"] for span in spans["llm_request"]]
    assert len(of_chat) == 3 and sorted(ends) == ["abort", "length", "length", "length"]


def test_a_collector_that_fails_costs_one_line() -> None:
    """Of the log; requests are answered, the server ends well, and it says when spans arrive again."""
    with collecting() as collector:
        collector.fails = True
        with traced_server(collector.url, "--log-format", "json") as server:
            for _ in range(3):
                assert server.complete(max_tokens=2).status_code == 200
            server.until_it_says("cannot be sent")
            collector.fails = False
            assert server.complete(max_tokens=2).status_code == 200
            server.until_it_says("again")
            said = [json.loads(line)["message"] for line in server.said if "span" in line]
    assert len(said) == 2 and collector.url in said[0] and "were lost" in said[1]


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        ("localhost:4318", "http://localhost:4318"),
        ("ftp://x:1", "http://localhost:4318"),
        ("http://", "http://localhost:4318"),
        ("grpc://localhost:4317", "opentelemetry-exporter-otlp-proto-grpc"),
    ],
)
def test_where_no_spans_can_be_sent_is_refused_by_name(endpoint: str, words: str) -> None:
    """Before the model is looked at: it is not there either."""
    done = sundog("serve", "/no/such/model", "--port", 0, "--otlp-traces-endpoint", endpoint)
    refused(done, "--otlp-traces-endpoint", words)


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_without_an_endpoint_nothing_of_it_is_imported() -> None:
    """Nor does an answer name a trace."""
    shown = "print([name for name in sys.modules if 'telemetry' in name])"
    code = f"import sys; import sundog.actors.api.serve_graph; {shown}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
