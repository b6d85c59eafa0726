"""How far an emulated server is behind its pace, as Prometheus reads it."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from actors.metrics.totals import Lag

LABELS = ("model_name", "engine")


class LagFamilies(Collector):
    """Collects the lag of every engine at each scrape."""

    def __init__(self, lag: Lag, model: str, first_engine: int = 0) -> None:
        self._lag, self._model, self._first_engine = lag, model, first_engine

    def collect(self) -> Iterator[Metric]:
        late = GaugeMetricFamily(
            "sundog:emulation_late_seconds", "How late the last step ended, by the model.", labels=LABELS
        )
        lost = CounterMetricFamily(
            "sundog:emulation_lost_seconds",
            "Seconds by which steps took longer than the model says, and that cannot be caught up.",
            labels=LABELS,
        )
        scale = GaugeMetricFamily(
            "sundog:emulation_time_scale",
            "Seconds of the server's clock in one of the wall's.",
            labels=LABELS,
        )
        seconds = zip(self._lag.late_s, self._lag.lost_s, strict=True)
        for number, (late_s, lost_s) in enumerate(seconds, self._first_engine):
            labels = (self._model, str(number))
            late.add_metric(labels, late_s)
            lost.add_metric(labels, lost_s)
            scale.add_metric(labels, self._lag.time_scale)
        yield from (late, lost, scale)
