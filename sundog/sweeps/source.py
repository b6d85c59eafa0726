"""The traffic that a sweep or a plan is for: a trace, or a description in a TOML file."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from actors.config import ConfigError
from sundog.options.simulation import ReadingOptions
from sundog.sweeps.axes import with_fields
from sundog.sweeps.cell import Plan

if TYPE_CHECKING:
    from sim.figures.named import Metric
    from sim.figures.sweep.cells import Settings


def workload_of(source: str, reading: ReadingOptions, resample: bool = False) -> dict[str, Any]:
    """Read the description in a TOML file, or make that of a trace as it was recorded."""
    from sim.trace.read import read_trace
    from sim.workload.read import read_values

    if not source.endswith(".toml"):
        read_trace(source, reading.tokenizer)
        return {"scaled": {"trace": source, "limit": reading.limit, "tokenizer": reading.tokenizer}}
    workload = read_values(source)
    for name in ("limit", "tokenizer"):
        if getattr(reading, name) is not None:
            raise ConfigError(f"--{name} is for a trace, and {source} describes a workload: leave it out")
    if resample and "scaled" not in workload:
        raise ConfigError(f"--resample is for a recorded trace, and every seed of {source} differs already")
    return workload


def check_tenants(plan: Plan, cells: "Sequence[Settings]", metrics: "Sequence[Metric]") -> None:
    """Refuse a metric or an objective of a tenant that no setting's workload has."""
    wanted = {each.tenant: each.name for each in metrics if each.tenant is not None}
    if not wanted:
        return
    known: set[str] = set()
    for settings in {repr(with_fields(plan.workload, each)): each for each in cells}.values():
        known |= plan.source(settings).tenant_names
    for tenant, name in wanted.items():
        if tenant not in known:
            has = f"it has {', '.join(sorted(known))}" if known else "its requests have no tenant"
            raise ConfigError(f"{name}: {plan.where} has no tenant {tenant}; {has}")
