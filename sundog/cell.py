"""One replication of a sweep, in a process of its own: a seed's requests under a cell's settings."""

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from actors.config import ConfigError
from sundog.axes import with_fields
from sundog.options.engine import Engine
from sundog.options.simulation import Load, Target, Terms, parse_rate

if TYPE_CHECKING:
    from sim.figures.sweep.measure import Measures
    from sim.figures.sweep.sweep import Job, Settings
    from sim.trace.record import TraceRequest

T = TypeVar("T", Engine, Target, Load)


@dataclass(frozen=True, slots=True)
class Plan:
    """What all cells have in common; `where` names the workload in errors."""

    workload: dict[str, Any]
    where: str
    engine: Engine
    target: Target
    load: Load
    terms: Terms
    warmup_s: float | None


def run_job(plan: Plan, job: "Job") -> "Measures":
    """The figures of one run."""
    from sim.figures.metrics import summarize
    from sim.figures.sweep.measure import measure
    from sim.predictor import find_predictor
    from sim.replay import replay
    from sundog.simulated import Simulated

    settings, seed = job
    load = _changed(plan.load, settings)
    simulated = Simulated.of(_changed(plan.engine, settings), _changed(plan.target, settings))
    recorder = replay(
        _requests(plan, settings, load, seed),
        replace(simulated.config, decode_runs=True),
        simulated.cost,
        simulated.capacity,
        predictor=None if load.predictor is None else find_predictor(load.predictor, seed),
        front_end_s=simulated.front_end_s,
        max_concurrency=load.max_concurrency,
    )
    return measure(recorder, summarize(recorder, simulated.terms(plan.terms)), plan.warmup_s)


def _requests(plan: Plan, settings: "Settings", load: Load, seed: int) -> "list[TraceRequest]":
    from sim.workload.retime import retimed
    from sim.workload.spec import parse_spec

    requests = parse_spec(with_fields(plan.workload, settings), plan.where).requests(seed)
    if not requests:
        raise ConfigError(f"{plan.where} gives no request with seed {seed}")
    if load.request_rate is None:
        return list(requests)
    return list(retimed(requests, parse_rate(load.request_rate), seed))


def _changed(record: T, settings: "Settings") -> T:
    """The record with those settings that are its own."""
    own = {f.name for f in fields(record)}
    return replace(record, **{name: value for name, value in settings.items() if name in own})
