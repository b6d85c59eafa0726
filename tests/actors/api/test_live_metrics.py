"""GET /metrics and the log, through live servers."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families

from tests.live import EMULATED, Live, live

VLLM = """
    cache_config_info e2e_request_latency_seconds generation_tokens inter_token_latency_seconds
    iteration_tokens_total kv_cache_usage_perc num_preemptions num_requests_running num_requests_waiting
    num_requests_waiting_by_reason prefix_cache_hits prefix_cache_queries prompt_tokens
    prompt_tokens_by_source prompt_tokens_cached prompt_tokens_cached_by_source
    request_decode_time_seconds request_generation_tokens request_inference_time_seconds
    request_max_num_generation_tokens request_num_preemptions request_params_max_tokens
    request_prefill_kv_computed_tokens request_prefill_time_seconds request_prompt_tokens
    request_queue_time_seconds request_success request_time_per_output_token_seconds
    time_to_first_token_seconds
""".split()
"""Of vLLM 0.32's families those of a text model on one engine, without drafts, adapters and transfers."""

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scraped(server: Live) -> Values:
    """Every sample by its name and labels."""
    text = httpx.get(f"{server.url}/metrics").text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(values: Values, name: str, **labels: str) -> float:
    """The sum of the samples of this name with these labels."""
    wanted = set(labels.items())
    return sum(value for (each, has), value in values.items() if each == name and wanted <= has)


def test_the_families_are_vllms(any_server: Live) -> None:
    """By name and label; every one is there before the first request."""
    values = scraped(any_server)
    names = {name for name, _ in values}
    for family in VLLM:
        assert any(name.startswith(f"vllm:{family}") for name in names), family
    labels = {tuple(sorted(dict(has))) for name, has in values if name == "vllm:generation_tokens_total"}
    assert labels == {("engine", "model_name")}


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_what_is_scraped_is_what_was_served(any_server: Live) -> None:
    """Tokens, ends, times and requests by route."""
    before = scraped(any_server)
    bodies = [any_server.complete(max_tokens=7, ignore_eos=True).json() for _ in range(2)]
    assert any_server.complete(max_tokens=-1).status_code == 400
    after = scraped(any_server)

    def grew(name: str, **labels: str) -> float:
        return total(after, name, **labels) - total(before, name, **labels)

    prompt = sum(body["usage"]["prompt_tokens"] for body in bodies)
    assert grew("vllm:generation_tokens_total") == 14 == grew("vllm:request_generation_tokens_sum")
    assert grew("vllm:prompt_tokens_total") == prompt == grew("vllm:request_prompt_tokens_sum")
    assert grew("vllm:request_success_total", finished_reason="length") == 2
    assert grew("vllm:time_to_first_token_seconds_count") == 2
    assert grew("vllm:inter_token_latency_seconds_count") == 12
    assert grew("vllm:time_to_first_token_seconds_bucket", le="+Inf") == 2
    assert grew("http_requests_total", handler="/v1/completions", status="2xx") == 2
    assert grew("http_requests_total", handler="/v1/completions", status="4xx") == 1
    assert total(after, "vllm:num_requests_running") == total(after, "vllm:kv_cache_usage_perc") == 0


def test_load_generators_and_scrapers_read_it(emulated_server: Live) -> None:
    """HEAD, the text format, OpenMetrics where it is asked for, and a path that there is not."""
    url = f"{emulated_server.url}/metrics"
    assert httpx.head(url).status_code == 200
    assert httpx.get(url).headers["content-type"].startswith("text/plain; version=")
    accepts = {"Accept": "application/openmetrics-text; version=1.0.0"}
    answer = httpx.get(url, headers=accepts)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert list(open_metrics(answer.text))
    assert httpx.post(url).status_code == 405
    assert httpx.get(f"{url}/nothing").status_code == 404
    assert total(scraped(emulated_server), "http_requests_total", handler="none", status="4xx") >= 1


def test_the_dashboard_asks_for_what_there_is(emulated_server: Live) -> None:
    """Every metric in docs/grafana.json has a sample."""
    emulated_server.complete(max_tokens=2)
    names = {name for name, _ in scraped(emulated_server)}
    dashboard = json.loads((Path(__file__).parents[3] / "docs/grafana.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    wanted = {name for expr in asked for name in re.findall(r"(?:vllm|sundog):\w+|http_\w+", expr)}
    assert len(wanted) > 20 and wanted <= names, wanted - names


VLLMS_DASHBOARDS = """
e2e_request_latency_seconds_bucket e2e_request_latency_seconds_count e2e_request_latency_seconds_sum
generation_tokens_total inter_token_latency_seconds_bucket inter_token_latency_seconds_sum kv_cache_usage_perc
num_requests_running num_requests_waiting prompt_tokens_total request_decode_time_seconds_sum
request_generation_tokens_bucket request_max_num_generation_tokens_sum request_prefill_time_seconds_sum
request_prompt_tokens_bucket request_queue_time_seconds_sum request_success_total
time_to_first_token_seconds_bucket time_to_first_token_seconds_count time_to_first_token_seconds_sum
engine_sleep_state inter_token_latency_seconds_count iteration_tokens_total_bucket
iteration_tokens_total_count iteration_tokens_total_sum num_preemptions_total
num_requests_waiting_by_reason prefix_cache_hits_total prefix_cache_queries_total
prompt_tokens_by_source_total prompt_tokens_cached_total request_decode_time_seconds_count
request_generation_tokens_count request_generation_tokens_sum request_prefill_time_seconds_count
request_prompt_tokens_count request_prompt_tokens_sum request_queue_time_seconds_bucket
request_queue_time_seconds_count request_time_per_output_token_seconds_bucket
request_time_per_output_token_seconds_count request_time_per_output_token_seconds_sum
prompt_tokens_cached_by_source_total request_prefill_kv_computed_tokens_count
request_prefill_kv_computed_tokens_sum
"""
"""What dashboards in vllm/examples ask for that exists here: online_serving/prometheus_grafana/grafana.json
and dashboards/, and of observability/dashboards/grafana/ the overview, the service status, the instances
and the KV cache's without its connectors. The overview also asks for caches outside the engine and of images:
there are none here."""


def test_vllms_dashboards_ask_for_what_there_is(emulated_server: Live) -> None:
    """And find it by the label that they choose the model by."""
    emulated_server.complete(max_tokens=2)
    model = httpx.get(f"{emulated_server.url}/v1/models").json()["data"][0]["id"]
    found = {name for name, labels in scraped(emulated_server) if ("model_name", model) in labels}
    assert {f"vllm:{name}" for name in VLLMS_DASHBOARDS.split()} <= found


def test_vllms_board_of_instances_finds_the_process(emulated_server: Live) -> None:
    """Its time, memory and descriptors; and each engine's cache by the labels of its table."""
    found = scraped(emulated_server)
    names = {name for name, _ in found}
    assert {
        f"process_{name}" for name in "start_time_seconds cpu_seconds_total open_fds max_fds".split()
    } <= names
    (labels,) = [dict(labels) for name, labels in found if name == "vllm:cache_config_info"]
    assert {"engine", "num_gpu_blocks", "block_size", "enable_prefix_caching"} <= labels.keys()


def test_vllms_dashboards_choose_by_labels_that_are_there(emulated_server: Live) -> None:
    """Bounds that a goal is held against, reasons, sources, endings, states, and the classes of statuses."""
    emulated_server.complete(max_tokens=3, ignore_eos=True)
    found = {(name, label) for name, labels in scraped(emulated_server) for label in labels}
    for name, label, values in (
        ("vllm:time_to_first_token_seconds_bucket", "le", "0.1 0.25 0.5 0.75 1.0 2.5 +Inf"),
        ("vllm:request_time_per_output_token_seconds_bucket", "le", "0.01 0.025 0.05 0.1 1.0"),
        ("vllm:num_requests_waiting_by_reason", "reason", "capacity deferred"),
        ("vllm:prompt_tokens_by_source_total", "source", "local_compute local_cache_hit"),
        ("vllm:request_success_total", "finished_reason", "stop length abort error repetition"),
        ("vllm:engine_sleep_state", "sleep_state", "awake weights_offloaded discard_all"),
        ("http_requests_total", "status", "2xx"),
        ("http_request_duration_seconds_sum", "handler", "/v1/completions"),
    ):
        assert {(name, (label, value)) for value in values.split()} <= found, name
    (awake,) = [
        value
        for (name, labels), value in scraped(emulated_server).items()
        if name == "vllm:engine_sleep_state" and ("sleep_state", "awake") in labels
    ]
    assert awake == 1, "without it the board of services says that all are down"


@pytest.fixture(scope="module")
def json_server() -> Iterator[Live]:
    with live(*EMULATED, "--log-format", "json", "--api-key", "secret") as server:
        yield server
        assert server.stop() == 0


def test_a_request_is_a_line_of_json(json_server: Live) -> None:
    """With its id and its tenant, whatever they hold; the key is nowhere."""
    name = 'a"b'
    headers = {"Authorization": "Bearer secret", "X-Request-Id": name, "X-Tenant": "x y"}
    body = {"prompt": "Once", "max_tokens": 3, "ignore_eos": True}
    httpx.post(f"{json_server.url}/v1/completions", json=body, headers=headers).raise_for_status()
    assert httpx.post(f"{json_server.url}/v1/completions", json=body).status_code == 401
    for words in ('"finish_reason": "length"', '"status": 401'):
        json_server.until_it_says(words)
    lines = [line for line in map(json.loads, json_server.said) if "request_id" in line]
    (refused,) = [line for line in lines if line.get("status") == 401]
    (line,) = [line for line in lines if "path" not in line]
    assert (refused["path"], refused["status"], refused["finish_reason"]) == (
        "/v1/completions",
        401,
        "refused",
    )
    assert line["request_id"].startswith(f"cmpl-{name}") and line["tenant"] == "x y"
    assert line["output_tokens"] == 3 and line["finish_reason"] == "length" and line["ttft_s"] > 0
    assert not any("secret" in line for line in json_server.said)
    assert httpx.get(f"{json_server.url}/metrics").status_code == 200


def test_a_refusal_is_a_line_that_quotes_nothing(json_server: Live) -> None:
    """By status and id; what a client asks without a body, as scrapers do, is none."""
    key = {"Authorization": "Bearer secret", "X-Request-Id": "turned-away"}
    body = {"prompt": "my own words", "max_tokens": "my own words"}
    url = f"{json_server.url}/v1"
    assert httpx.post(f"{url}/completions", json=body, headers=key).status_code == 400
    assert httpx.get(f"{url}/nowhere", headers=key).status_code == 404
    json_server.until_it_says("turned-away")
    lines = [json.loads(line) for line in json_server.said]
    (line,) = [line for line in lines if line.get("request_id") == "turned-away"]
    assert (line["level"], line["status"], line["finish_reason"]) == ("info", 400, "refused")
    assert not any("my own words" in line or "nowhere" in line for line in json_server.said)


def test_a_refusal_does_not_steer_the_terminal_that_shows_it() -> None:
    """C1 codes pass for text in headers, and escape codes in paths."""
    with live(*EMULATED) as server:
        headers = {b"X-Request-Id": b"\x9b31mred"}
        assert httpx.post(f"{server.url}/v1/%1b[31m", headers=headers).status_code == 404
        server.until_it_says("refused with 404")
        (line,) = [line for line in server.said if "refused with 404" in line]
        assert line.rstrip("\n").isprintable() and "x9b31mred" in line and "x1b[31m" in line
        assert server.stop() == 0
