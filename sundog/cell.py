"""One replication of a sweep, in a process of its own: a seed's requests under a cell's settings."""

import traceback
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from actors.config import ConfigError
from sundog.axes import with_fields
from sundog.ends import leaves
from sundog.options.engine import Engine
from sundog.options.simulation import Load, Target, Terms, parse_rate

if TYPE_CHECKING:
    from sim.figures.sweep.outcome import Failed, Job, Settings
    from sim.figures.sweep.played import Played
    from sim.trace.record import TraceRequest
    from sim.workload.spec import Source

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
    resample: bool = False

    def source(self, settings: "Settings") -> "Source":
        """The cell's workload; raises ConfigError."""
        from sim.workload.spec import parse_spec

        return parse_spec(with_fields(self.workload, settings), self.where)

    def is_fixed(self, settings: "Settings") -> bool:
        """Whether every seed gives the cell the same run: nothing in it is drawn."""
        load = changed(self.load, settings)
        rate_per_s = None if load.request_rate is None else parse_rate(load.request_rate)
        if self.resample or load.predictor == "noisy" or rate_per_s not in (None, float("inf")):
            return False
        try:
            return self.source(settings).repeats
        except ConfigError:
            return False  # Its run says why.


class Runner:
    """Runs jobs, one after another; a copy of it is in every process of a sweep.

    It keeps the requests it made last, which most often are those of the next job, too.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._last: tuple[Source, int, list[TraceRequest]] | None = None

    def __call__(self, job: "Job") -> "Played | Failed":
        """One run, or why there is none: an error crosses processes as text."""
        from sim.figures.sweep.outcome import Failed

        try:
            return self._played(job)
        except Exception as error:  # noqa: BLE001  # whatever it is, it ends one run and not the sweep
            cause = next(leaves(error))
            if isinstance(cause, ConfigError):
                return Failed(" ".join(str(cause).split()))
            reason = f"a bug in Sundog, {type(cause).__name__}: {cause}"
            return Failed(" ".join(reason.split()), "".join(traceback.format_exception(error)))

    def _played(self, job: "Job") -> "Played":
        from sim.figures.sweep.played import played
        from sim.predictor import find_predictor
        from sim.replay import replay
        from sundog.simulated import Simulated

        settings, seed = job
        plan, load = self._plan, changed(self._plan.load, settings)
        simulated = Simulated.of(changed(plan.engine, settings), changed(plan.target, settings))
        recorder = replay(
            self._requests(settings, load, seed),
            replace(simulated.config, decode_runs=True),
            simulated.cost,
            simulated.capacity,
            predictor=None if load.predictor is None else find_predictor(load.predictor, seed),
            front_end_s=simulated.front_end_s,
            max_concurrency=load.max_concurrency,
        )
        return played(recorder, simulated.terms(plan.terms))

    def _requests(self, settings: "Settings", load: Load, seed: int) -> "list[TraceRequest]":
        from sim.workload.resample import resampled
        from sim.workload.retime import retimed

        requests = self._given(self._plan.source(settings), seed)
        if not requests:
            raise ConfigError(f"{self._plan.where} gives no request with seed {seed}")
        if self._plan.resample:
            requests = resampled(requests, seed)
        if load.request_rate is None:
            return requests
        return list(retimed(requests, parse_rate(load.request_rate), seed))

    def _given(self, source: "Source", seed: int) -> "list[TraceRequest]":
        from sim.workload.spec import Scaled

        seed = 0 if isinstance(source, Scaled) else seed
        if self._last is None or self._last[:2] != (source, seed):
            self._last = source, seed, source.requests(seed)
        return self._last[2]


def changed(record: T, settings: "Settings") -> T:
    """The record with those settings that are its own."""
    own = {f.name for f in fields(record)}
    return replace(record, **{name: value for name, value in settings.items() if name in own})
