"""A trial plays one draw of the traffic on one fleet, in a process of its own."""

import math
import traceback
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from sundog.actors.config import ConfigError
from sundog.ends import leaves
from sundog.sweeps.axes import with_fields
from sundog.sweeps.cell import CellRun, CellRunner, changed

if TYPE_CHECKING:
    from sundog.sim.figures.sweep.cells import Settings
    from sundog.sim.trace.record import TraceRequest


class FleetTrial(NamedTuple):
    """A fleet to try: its settings, how many replicas, the seed of the draw, and how the traffic is changed.

    `load` multiplies the rate at which sessions begin, if the workload describes sessions: as long a time
    as before has as many more, for pauses stay as they are. Else it divides the instants of arrival. With
    `at_means` every request has the mean lengths of all. A `to_the_end` trial goes on when it has lost, so
    that its figures are those of all requests. With `is_alone` the longest requests are asked one after
    another, so that each has a replica to itself.
    `window_s` takes the requests whose sessions begin between two instants.
    """

    settings: "Settings"
    num_replicas: int
    seed: int = 0
    load: float = 1.0
    at_means: bool = False
    to_the_end: bool = False
    is_alone: bool = False
    window_s: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The outcome of a trial. `values` are the objectives' metrics in seconds, by name.

    They are infinite where too many requests got no answer (`sundog.sim.figures.verdict`). If a trial
    `was_stopped` because it could not hold any more, they are those of the requests that were answered by
    then. `share` is the part of all requests that were answered, `num_unfinished` counts the others.
    `refused` says in one line why a fleet cannot run at all, `no_traffic` why no fleet can, and `turned_away`
    how many requests this one refused, and why. `doubt` is the share by which steps may take longer or
    shorter.
    """

    is_held: bool
    values: dict[str, float]
    share: float = 1.0
    num_unfinished: int = 0
    was_stopped: bool = False
    num_requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    span_s: float = 0.0
    refused: str | None = None
    no_traffic: str | None = None
    turned_away: str | None = None
    bug: str | None = None
    doubt: float = 0.0

    @property
    def is_lost_early(self) -> bool:
        """True if the trial ended when it could not hold any more, before its last request."""
        return self.was_stopped


def refusal(reason: str) -> TrialResult:
    """The result of a trial that could not be made."""
    return TrialResult(False, {}, refused=reason)


class TrialRunner(CellRunner):
    """Runs trials, one after another; a copy of it is in every process of a search."""

    def trial(self, trial: FleetTrial) -> TrialResult:
        """Make a trial; an error crosses processes as text."""
        try:
            return self._tried(trial)
        except Exception as error:  # noqa: BLE001  # it ends one trial and not the search
            cause = next(leaves(error))
            if isinstance(cause, ConfigError):
                return refusal(" ".join(str(cause).split()))
            return replace(refusal(str(cause)), bug="".join(traceback.format_exception(error)))

    def _tried(self, trial: FleetTrial) -> TrialResult:
        from sundog.builds.simulated import asked_terms, deploy
        from sundog.sim.figures.sweep.losing import loses
        from sundog.sim.figures.totals import percentiles
        from sundog.sim.figures.verdict import all_held, verdicts
        from sundog.sim.record.rows import Rows, latencies
        from sundog.sim.record.sink import Unkept
        from sundog.sim.show.words import count
        from sundog.sim.workload.read import parse_spec

        plan, settings = self._plan, trial.settings
        engine = changed(plan.engine, settings)
        engine = replace(engine, seed=engine.seed + trial.seed, replicas=trial.num_replicas)
        load = changed(plan.load, settings)
        load = replace(load, max_concurrency=1) if trial.is_alone else load
        run = CellRun(settings, engine, changed(plan.target, settings), load)
        try:
            denser = None
            if trial.load != 1.0 and run.load.request_rate is None:
                denser = at_load(with_fields(plan.workload, settings), trial.load)
            if denser is None:
                requests = changed_traffic(self._arriving(run), trial)
            else:
                source = parse_spec(denser, plan.where)
                requests = changed_traffic(source.requests(engine.seed), trial._replace(load=1.0))
        except ConfigError as error:
            return TrialResult(False, {}, no_traffic=str(error))
        if not requests or (trial.is_alone and any(row.hash_ids is not None for row in requests)):
            return TrialResult(True, {})
        played = worst(requests, trial.at_means) if trial.is_alone else requests
        simulated = deploy(run.engine, run.target)
        terms = simulated.terms(asked_terms(plan.terms))
        # Faults may bring requests that the traffic does not have: no part of a run says what all allow.
        is_whole = trial.to_the_end or run.target.faults not in (None, "none")
        question = None if is_whole else loses(terms.objectives, requests, simulated.front_end_s)
        recorder = self._replayed(run, played, simulated, Unkept(), question)
        rows = Rows.of(recorder.columns)
        times = latencies(rows, simulated.front_end_s)
        found = verdicts(terms.objectives, rows, times)
        values = {each.objective.metric.name: each.value_s for each in found}
        done = int(rows.is_done.sum())
        unfinished = max(len(rows.reason), len(played)) - done
        was_stopped = len(rows.reason) < len(played) or None in rows.reason
        if (
            was_stopped
        ):  # Requests under way may yet have had an answer: those that ended say what was missed.
            values = percentiles((each.metric for each in terms.objectives), rows, times)
        if trial.is_alone and not trial.at_means:
            held = not loses(terms.objectives, requests, simulated.front_end_s, every=1)(recorder)
        else:
            held = not was_stopped and all_held(found)
        refusals = recorder.refusals.counts.items()
        turned_away = [f"{count(number, 'request')} refused: {reason}" for reason, number in refusals]
        return TrialResult(
            is_held=held,
            values={name: value for name, value in values.items() if not math.isnan(value)},
            share=done / len(played) if unfinished else 1.0,
            num_unfinished=unfinished,
            was_stopped=was_stopped,
            num_requests=len(requests),
            prompt_tokens=int(rows.num_prompt_tokens.sum()),
            output_tokens=int(rows.num_output_tokens.sum()),
            span_s=requests[-1].arrival_s - requests[0].arrival_s,
            turned_away="; ".join(turned_away) or None,
            doubt=simulated.doubt,
        )


RATES = ("rate_per_s", "on_rate_per_s", "off_rate_per_s")
"""The keys of arrivals that say how often sessions begin."""


def at_load(workload: dict[str, Any], load: float) -> dict[str, Any] | None:
    """Return the description with `load` times as many sessions in the same time; None if it has none.

    Sessions brought closer together would all begin before the first ended its pauses, and be over.
    """
    parts = workload.get("populations", [workload])
    if not any("sessions" in part for part in parts):
        return None
    denser = []
    for part in parts:
        arrivals = part.get("arrivals", {})
        if not any(name in arrivals for name in RATES):
            return None
        scaled = {name: arrivals[name] * load for name in RATES if name in arrivals}
        denser.append({**part, "arrivals": {**arrivals, **scaled}})
    return {**workload, "populations": denser} if "populations" in workload else denser[0]


def changed_traffic(requests: "list[TraceRequest]", trial: FleetTrial) -> "list[TraceRequest]":
    """The requests of a window, at another load, or of mean lengths."""
    if trial.window_s is not None:
        requests = within(requests, *trial.window_s)
    if trial.at_means:
        count = len(requests)
        prompt = round(sum(row.num_prompt_tokens for row in requests) / count)
        output = round(sum(row.num_output_tokens for row in requests) / count)
        requests = [
            row._replace(
                num_prompt_tokens=prompt, num_output_tokens=output, hash_ids=None, hash_block_tokens=0
            )
            for row in requests
        ]
    if trial.load != 1.0:
        requests = [row._replace(arrival_s=row.arrival_s / trial.load) for row in requests]
    return requests


def within(requests: "list[TraceRequest]", begin_s: float, end_s: float) -> "list[TraceRequest]":
    """The sessions that begin from one instant to before another, whole, on a clock that begins with it."""
    kept: set[str] = set()
    found = []
    for row in requests:
        if not kept.isdisjoint(row.after) if row.after else begin_s <= row.arrival_s < end_s:
            kept.add(row.request_id)
            found.append(row._replace(arrival_s=row.arrival_s - begin_s))
    return found


def worst(requests: "list[TraceRequest]", are_equal: bool) -> "list[TraceRequest]":
    """The requests that show whether a replica of one's own is enough: the longest, one after another.

    They are a sixth of all, so that a percentile above the 84th can be lost; that none is lost shows nothing.
    Of equal requests one shows everything.
    """
    longest = sorted(requests, key=lambda row: -row.num_prompt_tokens)
    chosen = longest[: 1 if are_equal else math.ceil(len(requests) / 6)]
    return [row._replace(arrival_s=0.0, after=(), session=None) for row in chosen]
