"""Replication of a sweep, in a child process: a seed's requests under a cell's settings."""

import gc
import traceback
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sundog.actors.config import ConfigError
from sundog.actors.policy_file import find_policy, find_router
from sundog.ends import leaves
from sundog.options.config_file import recorded
from sundog.options.engine import EngineOptions
from sundog.options.row import rows
from sundog.options.simulation import LoadOptions, ReadingOptions, TargetOptions, TermsOptions, parse_rate
from sundog.sweeps.axes import with_fields
from sundog.sweeps.sweep_folder import SweepFolder

if TYPE_CHECKING:
    from sundog.sim.deployment.record import Simulated
    from sundog.sim.figures.sweep.cells import FailedRun, Job, Settings
    from sundog.sim.figures.sweep.played import Played
    from sundog.sim.record.recorder import Recorder
    from sundog.sim.record.run_output import RunOutput
    from sundog.sim.record.sink import Unkept
    from sundog.sim.trace.record import TraceRequest
    from sundog.sim.workload.read import Source

T = TypeVar("T", EngineOptions, TargetOptions, LoadOptions)


@dataclass(frozen=True, slots=True)
class Plan:
    """Part of a sweep that all cells share; `where` names the workload in errors.

    With `judged_s`, trials of a plan judge the settled part of steady traffic (`sundog.planning.settled`).
    """

    workload: dict[str, Any]
    where: str
    engine: EngineOptions
    target: TargetOptions
    load: LoadOptions
    terms: TermsOptions
    resample: bool = False
    folder: SweepFolder | None = None
    messages: bool = False
    judged_s: float | None = None

    def source(self, settings: "Settings") -> "Source":
        """Return the cell's workload; raises ConfigError."""
        from sundog.sim.workload.read import parse_spec

        return parse_spec(with_fields(self.workload, settings), self.where)

    def is_fixed(self, settings: "Settings") -> bool:
        """Return whether every seed gives the cell the same run, because nothing is random."""
        load = changed(self.load, settings)
        rate_per_s = None if load.request_rate is None else parse_rate(load.request_rate)
        if changed(self.target, settings).faults not in (None, "none"):
            return False
        if self.resample or load.predictor == "noisy" or rate_per_s not in (None, float("inf")):
            return False
        engine = changed(self.engine, settings)
        try:
            if draws(find_policy(engine.policy)):
                return False
            if engine.replicas * engine.data_parallel_size > 1 and draws(find_router(engine.chosen_router)):
                return False
            return self.source(settings).repeats
        except ConfigError:
            return False  # Its run says why.


def draws(decider: object) -> bool:
    """Return whether a method of a policy or a router uses random numbers from the seed."""
    own = type(getattr(decider, "inner", decider))
    codes = [getattr(value, "__code__", None) for cls in own.__mro__ for value in vars(cls).values()]
    return any("random" in code.co_names for code in codes if code is not None)


@dataclass(frozen=True, slots=True)
class CellRun:
    """Run under a setting's options; the engine has a random seed of its own."""

    settings: "Settings"
    engine: EngineOptions
    target: TargetOptions
    load: LoadOptions


class CellRunner:
    """Runner of one job after another, copied to every process of a sweep.

    It caches the last requests, since the next job usually has the same.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._last: tuple[Source, int, list[TraceRequest]] | None = None

    def __call__(self, job: "Job") -> "Played | FailedRun":
        """Return one run, or the reason why it failed: an error becomes text, since it crosses processes."""
        from sundog.sim.figures.sweep.cells import FailedRun

        try:
            return self._played(job)
        except Exception as error:  # noqa: BLE001  # whatever it is, it ends one run and not the sweep
            cause = next(leaves(error))
            if isinstance(cause, ConfigError):
                return FailedRun(" ".join(str(cause).split()))
            reason = f"a bug in Sundog, {type(cause).__name__}: {cause}"
            return FailedRun(" ".join(reason.split()), "".join(traceback.format_exception(error)))

    def _played(self, job: "Job") -> "Played":
        from sundog.builds.simulated import asked_terms, deploy
        from sundog.sim.figures.sweep.played import load_of, played
        from sundog.sim.record.sink import Unkept

        plan, (settings, number) = self._plan, job
        engine = changed(plan.engine, settings)
        run = CellRun(
            settings,
            replace(engine, seed=engine.seed + number),
            changed(plan.target, settings),
            changed(plan.load, settings),
        )
        simulated = deploy(run.engine, run.target)
        terms = simulated.terms(asked_terms(plan.terms))
        requests = self._arriving(run)
        if plan.folder is None:
            return played(self._replayed(run, requests, simulated, Unkept()), terms, load_of(requests))
        place = plan.folder.run(settings, run.engine.seed)
        if not place.exists():
            self._keep(run, requests, simulated, place)
        from sundog.sim.figures.sweep.played import read_played

        return read_played(
            place,
            front_end_s=simulated.front_end_s,
            num_replicas=simulated.config.replicas,
            num_blocks=simulated.capacity.num_blocks - 1,
            terms=terms,
            load=requests,
        )

    def _keep(
        self, run: "CellRun", requests: "list[TraceRequest]", simulated: "Simulated", place: Path
    ) -> None:
        from sundog.builds.simulated import asked_terms
        from sundog.sim.figures.metrics import summarize
        from sundog.sim.record.journal_rows import Header
        from sundog.sim.record.run_directory import replay_id
        from sundog.sim.record.run_output import RunOutput, kind_of_replay

        plan = self._plan
        trace, reading = self._trace(run)
        options = recorded((run.engine, run.target, run.load, plan.terms, reading), trace, place)
        header = Header.of(simulated.config, simulated.capacity.num_blocks, replay_id(options, place))
        kind = kind_of_replay(simulated.config)
        with RunOutput(place, header, options=options, messages=plan.messages, kind=kind) as output:
            recorder = self._replayed(run, requests, simulated, output)
            terms = simulated.terms(asked_terms(plan.terms))
            output.finish(summarize(recorder, terms, output.rows()).to_json())

    def _replayed(
        self,
        run: "CellRun",
        requests: "list[TraceRequest]",
        simulated: "Simulated",
        output: "RunOutput | Unkept",
        stop_when: "Callable[[Recorder], bool] | None" = None,
    ) -> "Recorder":
        from sundog.builds.replayed import play

        simulated = replace(simulated, config=replace(simulated.config, decode_runs=True))
        recorder = play(simulated, requests, run.load, run.engine.seed, output, stop_when=stop_when)
        gc.collect(1)  # the graph, or a process would grow by each of its runs
        return recorder

    def _trace(self, run: "CellRun") -> tuple[str, ReadingOptions]:
        from sundog.sim.workload.spec import Scaled

        plan, source = self._plan, self._plan.source(run.settings)
        if isinstance(source, Scaled) and source.is_plain and not plan.resample:
            own = {row.name: getattr(source, row.name) for row in rows(ReadingOptions)}
            whole = {"from_s": 0.0, "sample_sessions": 1.0}
            given = {name: value for name, value in own.items() if value != whole.get(name)}
            return source.trace, ReadingOptions(**given)
        assert plan.folder is not None
        return str(plan.folder.trace(run.settings, run.engine.seed, self._requests(run))), ReadingOptions()

    def _arriving(self, run: "CellRun") -> "list[TraceRequest]":
        from sundog.sim.workload.resample import retimed

        requests, rate = self._requests(run), run.load.request_rate
        return requests if rate is None else list(retimed(requests, parse_rate(rate), run.engine.seed))

    def _requests(self, run: "CellRun") -> "list[TraceRequest]":
        from sundog.sim.workload.resample import resampled

        seed = run.engine.seed
        requests = self._given(self._plan.source(run.settings), seed)
        if not requests:
            raise ConfigError(f"{self._plan.where} gives no request with seed {seed}")
        return resampled(requests, seed) if self._plan.resample else requests

    def _given(self, source: "Source", seed: int) -> "list[TraceRequest]":
        from sundog.sim.workload.spec import Scaled

        seed = 0 if isinstance(source, Scaled) else seed
        if self._last is None or self._last[:2] != (source, seed):
            self._last = source, seed, source.requests(seed)
        return self._last[2]


def changed(record: T, settings: "Settings") -> T:
    """Return the record with the settings that are among its fields."""
    own = {f.name: getattr(record, f.name) for f in fields(record)}
    found = {name: value for name, value in settings.items() if name in own}
    several = {name: tuple(value.split("+")) for name, value in found.items() if isinstance(own[name], tuple)}
    return replace(record, **found | several)
