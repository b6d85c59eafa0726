"""Metrics and objectives by the names that users write: `ttft_s.p95`, `requests_per_s`, `p95(ttft)<1`."""

import re
from dataclasses import fields
from typing import NamedTuple

from sundog.actors.core.config import ConfigError
from sundog.actors.core.names import unknown
from sundog.sim.figures.tenants import TenantFigures

PERCENT = {"mean": None, "p50": 50.0, "p90": 90.0, "p99": 99.0}
"""Parts of a distribution that every run has; None is the mean."""
LATENCIES = ("ttft_s", "tpot_s", "e2e_s", "queueing_s", "prefill_s", "decode_s", "slowdown")
HIGHER_IS_BETTER = (
    "output_tokens_per_s",
    "requests_per_s",
    "prefix_hit_rate",
    "slo_attainment",
    "slo_held",
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
    "recompute_tax",
    "imbalance",
    "gpu_hours",
    "num_finished",
    "num_aborted",
    "num_refused",
    "num_failed",
    "cost_per_million_output_tokens",
)
"""Figures of the whole run after the warm-up."""
PROGRAM = "program_s"
"""Latency of programs of agents, for runs with requests that follow one another."""
TENANT = "tenant."
OF_TENANTS = tuple(field.name for field in fields(TenantFigures))
PERCENTILES_OF_TENANTS = tuple(f"{latency}.p95" for latency in LATENCIES)
"""Names of some percentiles of tenants; the names of others are accepted, too."""
NAMES = (*(f"{latency}.{part}" for latency in LATENCIES for part in PERCENT), *WHOLE)


def percentile(part: str) -> float | None:
    """Return 99.9 for `p99.9`; None if `part` is not a percentile between 0 and 100."""
    found = re.fullmatch(r"p(\d{1,2}(?:\.\d{1,6})?)", part)
    return None if found is None or not float(found[1]) else float(found[1])


class Metric(NamedTuple):
    """Parts of a metric's name.

    ttft_s.p99.9               a latency, and a part of its distribution: the mean or any percentile
    output_tokens_per_s        a figure of the whole run
    tenant.paid.tpot_s.p95     a latency of one tenant, whose name may have dots
    tenant.paid.ttft_p99_s     a figure of one tenant
    """

    name: str
    figure: str
    part: str | None = None
    tenant: str | None = None

    @classmethod
    def parse(cls, name: str) -> "Metric":
        """Parse a metric's name; raises ConfigError for an unknown one."""
        tenant, rest = None, name
        if name.startswith(TENANT):
            pattern = rf"(.+?)\.((?:{'|'.join(LATENCIES)})\.(?:mean|p[\d.]+)|[^.]+)"
            if (found := re.fullmatch(pattern, name.removeprefix(TENANT))) is not None:
                tenant, rest = found[1], found[2]
        if tenant is not None and rest in OF_TENANTS:
            return cls(name, rest, tenant=tenant)
        figure, _, part = rest.partition(".")
        known = LATENCIES if tenant is not None else (*LATENCIES, PROGRAM)
        if figure in known and (part == "mean" or percentile(part) is not None):
            return cls(name, figure, part, tenant)
        if figure in known:
            raise ConfigError(
                f"metric {name!r} has the part {part!r}: give mean, or a percentile below 100, as p99.9"
            )
        if tenant is not None:
            raise unknown("figure of a tenant", rest, (*OF_TENANTS, *PERCENTILES_OF_TENANTS))
        if name not in WHOLE:
            raise unknown("metric", name, (*NAMES, *(f"{PROGRAM}.{part}" for part in PERCENT)))
        return cls(name, name)

    @property
    def percent(self) -> float | None:
        """Percentile, from 0 to 100; None for other metrics."""
        return None if self.part is None else percentile(self.part)

    @property
    def is_higher_better(self) -> bool:
        """Whether larger values are better."""
        return self.figure in HIGHER_IS_BETTER

    @property
    def title(self) -> str:
        """Column heading of this metric, with its unit."""
        if self.part is not None and self.figure.endswith("_s"):
            latency = self.figure.removesuffix("_s").upper().replace("QUEUEING", "queueing")
            owner = "" if self.tenant is None else f"{self.tenant} "
            return f"{owner}{latency} {self.part} ms"
        return self.name.replace("_per_s", "/s").replace("_", " ")

    @property
    def scale(self) -> float:
        """Factor from a value to the unit of `title`: latencies are shown in milliseconds."""
        return 1000.0 if self.part is not None and self.figure.endswith("_s") else 1.0


class Objective(NamedTuple):
    """Limit on a part of a latency's distribution, in seconds: `p95(ttft)<1`, of one tenant or of all.

    Unlike per-request limits, it is met or missed by a whole run.
    """

    text: str
    metric: Metric
    below_s: float

    @classmethod
    def parse(cls, text: str) -> "Objective":
        """Parse `p95(ttft)<1` or `tenant rag: mean(e2e)<20`; raises ConfigError."""
        pattern = r"(?:tenant\s+(.+?)\s*:\s*)?(mean|p[\d.]+)\(\s*(ttft|tpot|e2e|queueing)\s*\)\s*<=?\s*(\S+)"
        found = re.fullmatch(pattern, text.strip())
        if found is None or not (found[2] == "mean" or percentile(found[2]) is not None):
            raise ConfigError(
                f"{text.strip()!r} is not an objective: write p95(ttft)<1 or tenant rag: p95(tpot)<0.04"
            )
        try:
            below_s = float(found[4])
        except ValueError:
            below_s = -1.0
        if not 0 < below_s <= 1e9:
            raise ConfigError(
                f"{text.strip()!r} has the limit {found[4]}: give seconds above 0, as in p95(ttft)<1"
            )
        name = f"{found[3]}_s.{found[2]}"
        return cls(
            text.strip(), Metric.parse(name if found[1] is None else f"{TENANT}{found[1]}.{name}"), below_s
        )
