"""Metrics as Prometheus reads them: vLLM's names, labels and buckets for what exists in both, and our own."""

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from actors.api.emulation import Emulation
from actors.api.exposition.families import EngineFamilies
from actors.api.exposition.lag import LagFamilies
from actors.config import EngineConfig
from actors.metrics.metrics import Metrics

__all__ = ["registry_of"]


def registry_of(
    metrics: Metrics,
    model: str,
    config: EngineConfig,
    max_loras: int | None,
    emulation: Emulation | None = None,
) -> CollectorRegistry:
    """Everything that one server's /metrics shows, but for requests over HTTP."""
    registry = CollectorRegistry()
    cache = {
        "enable_prefix_caching": config.scheduler.enable_prefix_caching,
        "prefix_caching_hash_algo": config.prefix_caching_hash_algo,
    }
    registry.register(EngineFamilies(metrics, model, cache, max_loras))
    if emulation is not None:
        registry.register(LagFamilies(emulation.lag, model))
    GCCollector(registry=registry)
    PlatformCollector(registry=registry)
    ProcessCollector(registry=registry)
    return registry
