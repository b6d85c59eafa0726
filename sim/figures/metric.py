"""The metrics by which runs are compared: every name that a user may write is read here, once."""

from dataclasses import fields
from typing import NamedTuple

from actors.core.names import unknown
from sim.figures.tenants import TenantFigures

PERCENT = {"mean": None, "p50": 50.0, "p90": 90.0, "p99": 99.0}
"""The parts of a distribution; None is the mean."""
LATENCIES = ("ttft_s", "tpot_s", "e2e_s", "queueing_s", "prefill_s", "decode_s", "slowdown")
HIGHER_IS_BETTER = (
    "output_tokens_per_s",
    "requests_per_s",
    "prefix_hit_rate",
    "slo_attainment",
    "goodput_requests_per_s",
    "fairness",
    "slowdown_fairness",
    "finished_fraction",
)
WHOLE = (
    *HIGHER_IS_BETTER,
    "busy_fraction",
    "saturation",
    "kv_use_mean",
    "num_preemptions",
    "imbalance",
    "cost_per_million_output_tokens",
)
"""Figures of all requests after the warm-up together."""
TENANT = "tenant."
OF_TENANTS = tuple(field.name for field in fields(TenantFigures))
NAMES = (*(f"{latency}.{part}" for latency in LATENCIES for part in PERCENT), *WHOLE)


class Metric(NamedTuple):
    """A metric by its parts.

    ttft_s.p99                 a latency, and a part of its distribution over requests
    output_tokens_per_s        a figure of the whole run
    tenant.paid.ttft_p99_s     a figure of one tenant, whose name may have dots
    """

    name: str
    figure: str
    part: str | None = None
    tenant: str | None = None

    @classmethod
    def parse(cls, name: str) -> "Metric":
        """Read a metric's name; raises ConfigError for one that is not known."""
        owner, _, figure = name.rpartition(".")
        if owner.startswith(TENANT):
            if figure not in OF_TENANTS:
                raise unknown("figure of a tenant", figure, OF_TENANTS)
            return cls(name, figure, tenant=owner.removeprefix(TENANT))
        if name not in NAMES:
            raise unknown("metric", name, NAMES)
        return cls(name, owner, part=figure) if owner else cls(name, figure)

    @property
    def is_higher_better(self) -> bool:
        """True where a larger value is the better one."""
        return self.figure in HIGHER_IS_BETTER

    @property
    def title(self) -> str:
        """The head of a column of this metric, with its unit."""
        if self.part is not None and self.figure.endswith("_s"):
            latency = self.figure.removesuffix("_s").upper().replace("QUEUEING", "queueing")
            return f"{latency} {self.part} ms"
        return self.name.replace("_per_s", "/s").replace("_", " ")

    @property
    def scale(self) -> float:
        """Turns a value into the unit of `title`: a latency is shown in milliseconds."""
        return 1000.0 if self.part is not None and self.figure.endswith("_s") else 1.0
