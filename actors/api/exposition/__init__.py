"""Metrics for Prometheus: vLLM's names, labels and buckets where both have the metric, and Sundog's own."""

from collections import Counter
from typing import Protocol

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder

from sundog.actors.api.emulation import Emulation
from sundog.actors.api.exposition.families import EngineFamilies, KvTransferFamilies, LagFamilies
from sundog.actors.api.exposition.http_metrics import HttpMetrics
from sundog.actors.config import EngineConfig
from sundog.actors.metrics.metrics import Metrics
from sundog.actors.metrics.totals import KvTransferTotals

__all__ = ["Exposition", "OwnExposition", "registry_of"]


class Exposition(Protocol):
    """Source of the page /metrics, which also counts requests over HTTP."""

    def count(
        self, method: str, status: str, handler: str, num_bytes: tuple[int, int], elapsed_s: float
    ) -> None: ...

    async def scrape(self, accept: str) -> tuple[bytes, str]:
        """Return the page in the format of the `accept` header, and its content type."""
        ...


class OwnExposition:
    """Metrics of `registry`, with requests counted here and in `posted` (`HttpMetrics`)."""

    def __init__(self, registry: CollectorRegistry, posted: Counter[str] | None = None) -> None:
        self._registry = registry
        self.count = HttpMetrics(registry, Counter() if posted is None else posted).count

    async def scrape(self, accept: str) -> tuple[bytes, str]:
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


def registry_of(
    metrics: Metrics,
    model: str,
    config: EngineConfig,
    max_loras: int | None,
    emulation: Emulation | None = None,
    first_engine: int = 0,
    transfers: KvTransferTotals | None = None,
) -> CollectorRegistry:
    """Return all metrics of one server except those of HTTP requests."""
    registry = CollectorRegistry()
    cache = {
        "enable_prefix_caching": config.scheduler.enable_prefix_caching,
        "prefix_caching_hash_algo": config.prefix_caching_hash_algo,
    }
    registry.register(
        EngineFamilies(metrics, model, cache=cache, max_loras=max_loras, first_engine=first_engine)
    )
    if emulation is not None:
        registry.register(LagFamilies(emulation.lag, model, first_engine))
    if transfers is not None:
        registry.register(KvTransferFamilies(transfers, model))
    GCCollector(registry=registry)
    PlatformCollector(registry=registry)
    ProcessCollector(registry=registry)
    return registry
