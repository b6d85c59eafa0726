"""Traffic of a sweep or a plan: a trace, or a description in a TOML file."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sundog.actors.config import ConfigError
from sundog.ends import remark
from sundog.options.config_file import recorded
from sundog.options.row import refuse
from sundog.options.simulation import ReadingOptions
from sundog.sweeps.axes import NAMED, with_fields
from sundog.sweeps.cell import Plan

if TYPE_CHECKING:
    from sundog.sim.figures.named import Metric
    from sundog.sim.figures.sweep.cells import Settings


def workload_of(source: str, reading: ReadingOptions, resample: bool = False) -> dict[str, Any]:
    """Read the description in a TOML file, or describe a trace as recorded."""
    from sundog.sim.workload.read import read_values

    if not source.endswith(".toml"):
        for text in reading.trace(source).remarks:
            remark(text)
        return {"scaled": reading.scaled(source)}
    workload = read_values(source)
    refuse((reading,), f"is for a trace, and {source} describes a workload: leave it out")
    if resample and "scaled" not in workload:
        raise ConfigError(
            f"--resample applies only to a recorded trace: every seed of {source} differs already"
        )
    return workload


def check_tenants(plan: Plan, cells: "Sequence[Settings]", metrics: "Sequence[Metric]") -> None:
    """Raise ConfigError for a metric or an objective of a tenant, or of programs, that the traffic lacks."""
    from sundog.sim.figures.named import PROGRAM

    for name in (each.name for each in metrics if each.figure == PROGRAM):
        if not any(row.after for row in plan.source(cells[0]).requests(plan.engine.seed)):
            raise ConfigError(f"{name} is of programs: no request of {plan.where} comes after another")
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


def identity(
    plan: Plan, reading: ReadingOptions | None, folder: Path, cells: "Sequence[Settings]"
) -> dict[str, object]:
    """Return everything that the runs of these settings depend on, by option; paths are relative to `folder`.

    Files, including those of policies and routers, are represented by their contents.
    """
    from sundog.sim.record.run_directory import content, sundog_version

    records = (plan.engine, plan.target, plan.load, plan.terms, *([reading] if reading else []))
    options = recorded(records, plan.where, folder)
    seen_from = {value: folder for value in options.values() if isinstance(value, str)}
    seen_from |= {str(cell[name]): Path.cwd() for cell in cells for name in NAMED if name in cell}
    files = {name: held for name, seen in seen_from.items() if (held := content(name, seen)) != name}
    judged = {} if plan.judged_s is None else {"judged_s": plan.judged_s}
    return {**options, **judged, "files": files, "sundog": sundog_version()}
