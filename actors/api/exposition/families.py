"""Totals of the engines as metric families, computed only when scraped.

Names, labels and buckets are those of vLLM 0.32, for its dashboards and autoscalers; Sundog's own begin with
`sundog:`. Families of vLLM that would always be empty here are left out.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from sundog.actors.core.batch import Lack
from sundog.actors.metrics.measured import Measured
from sundog.actors.metrics.metrics import Metrics
from sundog.actors.metrics.totals import EngineTotals, Histogram, KvTransferTotals, Lag

LABELS = ("model_name", "engine")
SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")
LACKS = tuple(reason for reason in get_args(Lack) if reason != "unknown")
ENDINGS = ("stop", "length", "abort", "error", "repetition")

Number = Callable[[EngineTotals], float]

GAUGES: dict[str, tuple[str, Number]] = {
    "vllm:num_requests_running": ("Requests in the running batch.", lambda e: e.num_running),
    "vllm:num_requests_waiting": ("Requests waiting to be scheduled.", lambda e: e.num_waiting),
    "vllm:kv_cache_usage_perc": ("Share of the KV cache in use; 1 is all of it.", lambda e: e.kv_usage),
    "sundog:engine_up": ("1 if the engine accepts requests.", lambda e: e.is_up),
    "sundog:policy_replaced": ("1 if fcfs replaces a policy that failed.", lambda e: e.has_other_policy),
}
COUNTERS: dict[str, tuple[str, Number]] = {
    "vllm:prefix_cache_queries": (
        "Prompt tokens looked up in the prefix cache.",
        lambda e: e.num_prefix_queries,
    ),
    "vllm:prefix_cache_hits": ("Prompt tokens found in the prefix cache.", lambda e: e.num_prefix_hits),
    "vllm:external_prefix_cache_queries": (
        "Prompt tokens looked up in the host's memory.",
        lambda e: e.num_host_queries,
    ),
    "vllm:external_prefix_cache_hits": (
        "Prompt tokens loaded from the host's memory.",
        lambda e: e.num_host_hits,
    ),
    "vllm:num_preemptions": ("Preemptions.", lambda e: e.num_preemptions),
    "vllm:prompt_tokens": ("Prompt tokens, cached ones included.", lambda e: e.num_prompt_tokens),
    "vllm:prompt_tokens_cached": ("Prompt tokens that were cached.", lambda e: e.num_cached_tokens),
    "vllm:generation_tokens": ("Generated tokens.", lambda e: e.num_generation_tokens),
    "sundog:engine_restarts": ("Restarts after a crash.", lambda e: e.num_restarts),
    "sundog:steps": ("Steps of the engine.", lambda e: e.num_steps),
    "sundog:step_seconds": (
        "Seconds spent in steps; its rate is the engine's utilisation.",
        lambda e: e.busy_s,
    ),
}
HISTOGRAMS: dict[str, tuple[str, Callable[[EngineTotals], Histogram]]] = {
    "vllm:request_prompt_tokens": ("Prompt tokens of a request.", lambda e: e.prompt_tokens),
    "vllm:request_generation_tokens": ("Generated tokens of a request.", lambda e: e.generation_tokens),
    "vllm:request_prefill_kv_computed_tokens": (
        "Prompt tokens of a request that were not cached.",
        lambda e: e.computed_prompt_tokens,
    ),
    "vllm:iteration_tokens_total": ("Tokens computed in a step.", lambda e: e.step_tokens),
    "vllm:request_max_num_generation_tokens": ("Tokens that a request may generate.", lambda e: e.max_tokens),
    "vllm:request_params_max_tokens": ("A request's max_tokens.", lambda e: e.max_tokens),
    "vllm:request_num_preemptions": ("Preemptions of a request.", lambda e: e.preemptions),
    "vllm:time_to_first_token_seconds": ("Seconds from arrival to the first token.", lambda e: e.ttft_s),
    "vllm:inter_token_latency_seconds": ("Seconds from one token to the next.", lambda e: e.inter_token_s),
    "vllm:request_time_per_output_token_seconds": (
        "Mean seconds between tokens of a request.",
        lambda e: e.per_token_s,
    ),
    "vllm:e2e_request_latency_seconds": ("Seconds from arrival to the last token.", lambda e: e.e2e_s),
    "vllm:request_queue_time_seconds": ("Seconds from arrival to the first step.", lambda e: e.queue_s),
    "vllm:request_inference_time_seconds": (
        "Seconds from the first step to the last token.",
        lambda e: e.inference_s,
    ),
    "vllm:request_prefill_time_seconds": (
        "Seconds from the first step to the first token.",
        lambda e: e.prefill_s,
    ),
    "vllm:request_decode_time_seconds": ("Seconds from the first token to the last.", lambda e: e.decode_s),
}


@dataclass(frozen=True, eq=False)
class EngineFamilies(Collector):
    """Collector of the engines' totals, with the engine as a label.

    `cache` is the content of `vllm:cache_config_info`; `max_loras` is set if adapters are served.
    """

    metrics: Metrics
    model: str
    cache: Mapping[str, object]
    max_loras: int | None = None
    first_engine: int = 0

    def collect(self) -> Iterator[Metric]:
        numbered = enumerate(self.metrics.engines, self.first_engine)
        engines = [((self.model, str(number)), each) for number, each in numbered]
        for name, (help_text, number_of) in GAUGES.items():
            gauge = GaugeMetricFamily(name, help_text, labels=LABELS)
            for labels, engine in engines:
                gauge.add_metric(labels, number_of(engine))
            yield gauge
        for name, (help_text, number_of) in COUNTERS.items():
            counter = CounterMetricFamily(name, help_text, labels=LABELS)
            for labels, engine in engines:
                counter.add_metric(labels, number_of(engine))
            yield counter
        for name, (help_text, histogram_of) in HISTOGRAMS.items():
            histogram = HistogramMetricFamily(name, help_text, labels=LABELS)
            for labels, engine in engines:
                values = histogram_of(engine)
                histogram.add_metric(labels, values.cumulative(), values.sum)
            yield histogram
        yield from _by_label(engines)
        yield from _drafts(engines)
        yield self._cache_info(engines)
        if self.max_loras is not None:
            yield _adapters(self.metrics.requests.values(), self.max_loras)

    def _cache_info(self, engines: "Engines") -> Metric:
        names = (*self.cache, "block_size", "num_gpu_blocks", "engine")
        family = GaugeMetricFamily("vllm:cache_config_info", "The KV cache's configuration.", labels=names)
        for (_, number), engine in engines:
            values = (*self.cache.values(), engine.block_size, engine.num_blocks + 1, number)
            family.add_metric([str(value) for value in values], 1)
        return family


Engines = Sequence[tuple[tuple[str, str], EngineTotals]]


def _by_label(engines: Engines) -> Iterator[Metric]:
    waiting = GaugeMetricFamily(
        "vllm:num_requests_waiting_by_reason", "Waiting requests by reason.", labels=(*LABELS, "reason")
    )
    blocked = GaugeMetricFamily(
        "sundog:queue_blocked",
        "Resource that the next request in the queue lacks.",
        labels=(*LABELS, "reason"),
    )
    sources = CounterMetricFamily(
        "vllm:prompt_tokens_by_source", "Prompt tokens by source.", labels=(*LABELS, "source")
    )
    cached = CounterMetricFamily(
        "vllm:prompt_tokens_cached_by_source", "Cached prompt tokens by cache.", labels=(*LABELS, "source")
    )
    ended = CounterMetricFamily(
        "vllm:request_success", "Requests that ended, by reason.", labels=(*LABELS, "finished_reason")
    )
    refused = CounterMetricFamily("sundog:requests_refused", "Requests the policy refused.", labels=LABELS)
    sleep = GaugeMetricFamily(
        "vllm:engine_sleep_state",
        "Sleep state of running engines: always awake. Absent for engines that are down.",
        labels=(*LABELS, "sleep_state"),
    )
    for labels, engine in engines:
        waiting.add_metric((*labels, "capacity"), engine.num_waiting)
        waiting.add_metric((*labels, "deferred"), 0)
        for reason in LACKS:
            blocked.add_metric((*labels, reason), engine.blocked_by == reason)
        sources.add_metric((*labels, "local_compute"), engine.num_computed_prompt_tokens)
        num_local = engine.num_cached_tokens - engine.num_loaded_tokens
        sources.add_metric((*labels, "local_cache_hit"), num_local)
        sources.add_metric((*labels, "external_kv_transfer"), engine.num_loaded_tokens)
        cached.add_metric((*labels, "device"), engine.num_prefix_hits)
        for reason in ENDINGS:
            ended.add_metric((*labels, reason), engine.ended[reason])
        refused.add_metric(labels, engine.ended["refused"])
        for state in SLEEP_STATES if engine.is_up else ():
            sleep.add_metric((*labels, state), state == "awake")
    yield from (waiting, blocked, sources, cached, ended, refused, sleep)


def _drafts(engines: Engines) -> Iterator[Metric]:
    if not any(engine.drafts.num_drafts for _, engine in engines):
        return
    drafts = CounterMetricFamily("vllm:spec_decode_num_drafts", "Verifications of drafts.", labels=LABELS)
    proposed = CounterMetricFamily("vllm:spec_decode_num_draft_tokens", "Draft tokens.", labels=LABELS)
    accepted = CounterMetricFamily(
        "vllm:spec_decode_num_accepted_tokens", "Draft tokens that were accepted.", labels=LABELS
    )
    positions = CounterMetricFamily(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "Accepted draft tokens by position.",
        labels=(*LABELS, "position"),
    )
    for labels, engine in engines:
        counts = engine.drafts
        drafts.add_metric(labels, counts.num_drafts)
        proposed.add_metric(labels, counts.num_draft_tokens)
        accepted.add_metric(labels, counts.num_accepted_tokens)
        for position, count in enumerate(counts.accepted_per_position):
            positions.add_metric((*labels, str(position)), count)
    yield from (drafts, proposed, accepted, positions)


def _adapters(requests: Iterable[Measured], max_loras: int) -> Metric:
    """Return the adapters with running and waiting requests, by which gateways choose a server."""
    family = GaugeMetricFamily(
        "vllm:lora_requests_info",
        "The adapters of running and waiting requests; the value is the time of the scrape.",
        labels=("max_lora", "waiting_lora_adapters", "running_lora_adapters"),
    )
    running: set[str] = set()
    waiting: set[str] = set()
    for request in requests:
        if request.adapter is not None:
            (running if request.is_running else waiting).add(request.adapter)
    family.add_metric((str(max_loras), ",".join(sorted(waiting)), ",".join(sorted(running))), time.time())
    return family


class KvTransferFamilies(Collector):
    """Collector of transfers between pools."""

    def __init__(self, totals: KvTransferTotals, model: str) -> None:
        self._totals, self._model = totals, model

    def collect(self) -> Iterator[Metric]:
        totals = self._totals
        for name, about, value in (
            ("transfers", "Prompts whose KV was transferred between engines.", totals.num_transfers),
            ("transfer_bytes", "Bytes of these.", totals.num_bytes),
            ("transfer_seconds", "Seconds spent in transfers, summed over transfers.", totals.seconds),
            ("transfers_lost", "Transfers that an engine's end interrupted.", totals.num_lost),
        ):
            family = CounterMetricFamily(f"sundog:kv_{name}", about, labels=LABELS[:1])
            family.add_metric((self._model,), value)
            yield family


class LagFamilies(Collector):
    """Collector of every engine's lag."""

    def __init__(self, lag: Lag, model: str, first_engine: int = 0) -> None:
        self._lag, self._model, self._first_engine = lag, model, first_engine

    def collect(self) -> Iterator[Metric]:
        late = GaugeMetricFamily(
            "sundog:emulation_late_seconds",
            "Seconds by which the last step ended later than modelled.",
            labels=LABELS,
        )
        lost = CounterMetricFamily(
            "sundog:emulation_lost_seconds",
            "Seconds by which steps took longer than modelled and cannot catch up.",
            labels=LABELS,
        )
        scale = GaugeMetricFamily(
            "sundog:emulation_time_scale", "Seconds of the server's clock per real second.", labels=LABELS
        )
        seconds = zip(self._lag.late_s, self._lag.lost_s, strict=True)
        for number, (late_s, lost_s) in enumerate(seconds, self._first_engine):
            labels = (self._model, str(number))
            late.add_metric(labels, late_s)
            lost.add_metric(labels, lost_s)
            scale.add_metric(labels, self._lag.time_scale)
        yield from (late, lost, scale)
