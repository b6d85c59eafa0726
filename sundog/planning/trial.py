"""Trial of one sample of the traffic on one fleet, in a child process."""

import math
import traceback
from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from sundog.actors.config import ConfigError
from sundog.ends import leaves
from sundog.sweeps.axes import with_fields
from sundog.sweeps.cell import CellRun, CellRunner, changed

if TYPE_CHECKING:
    from sundog.planning.settled import JudgedPart
    from sundog.sim.figures.sweep.cells import Settings
    from sundog.sim.record.recorder import Recorder
    from sundog.sim.trace.record import TraceRequest


class FleetTrial(NamedTuple):
    """Fleet to try: its settings, number of replicas, seed of the sample, and changes of the traffic.

    `load` multiplies the rates of a description: so many times as many sessions begin, with unchanged pauses.
    Otherwise it divides the arrival times. With `at_means` every request has the mean lengths of all. A
    `to_the_end` trial continues after it has missed an objective, so that its figures cover all requests.
    With `is_alone` the longest requests are sent one after another, so that each has a replica to itself.
    `window_s` selects the requests whose sessions begin between two times. `doubt` is a share by which steps
    take longer, or shorter if it is negative (`sundog.sim.cost.doubt`).
    """

    settings: "Settings"
    num_replicas: int
    seed: int = 0
    load: float = 1.0
    at_means: bool = False
    to_the_end: bool = False
    is_alone: bool = False
    window_s: tuple[float, float] | None = None
    doubt: float = 0.0


@dataclass(frozen=True, slots=True)
class TrialResult:
    """Outcome of a trial. `values` are the objectives' metrics in seconds, by name.

    They are infinite if too many requests got no answer (`sundog.sim.figures.verdict`). If a trial
    `was_stopped` because an objective was missed for certain, they cover the requests answered by then.
    `share` is the part of all requests that were answered, `num_unfinished` counts the others. `refused` is
    the reason in one line why a fleet cannot run, `no_traffic` why no fleet can, and `turned_away` the number
    of requests this one refused, with the reason. `doubt` is the share by which steps may take longer or
    shorter. Counts, tokens and `span_s` are those of the judged requests (`sundog.planning.settled`).
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
        """Whether the trial ended early because an objective could no longer be met."""
        return self.was_stopped


def refusal(reason: str) -> TrialResult:
    """Return the result of a trial that could not be made."""
    return TrialResult(False, {}, refused=reason)


class TrialRunner(CellRunner):
    """Runner of trials, one after another; every process of a search has a copy."""

    def trial(self, trial: FleetTrial) -> TrialResult:
        """Run a trial; an error becomes a result with its text, since it crosses processes."""
        try:
            return self._tried(trial)
        except Exception as error:  # noqa: BLE001  # it ends one trial and not the search
            cause = next(leaves(error))
            if isinstance(cause, ConfigError):
                return refusal(" ".join(str(cause).split()))
            return replace(refusal(str(cause)), bug="".join(traceback.format_exception(error)))

    def _tried(self, trial: FleetTrial) -> TrialResult:
        from sundog.builds.simulated import asked_terms, deploy
        from sundog.sim.figures.sweep.losing import EVERY, loses, marked
        from sundog.sim.figures.totals import percentiles
        from sundog.sim.figures.verdict import all_held, verdicts
        from sundog.sim.record.rows import Rows, latencies
        from sundog.sim.record.sink import Unkept
        from sundog.sim.show.words import count

        plan, settings = self._plan, trial.settings
        engine = changed(plan.engine, settings)
        engine = replace(engine, seed=engine.seed + trial.seed, replicas=trial.num_replicas)
        load = changed(plan.load, settings)
        load = replace(load, max_concurrency=1) if trial.is_alone else load
        run = CellRun(settings, engine, changed(plan.target, settings), load)
        try:
            requests, part = self._traffic(run, trial)
        except ConfigError as error:
            return TrialResult(False, {}, no_traffic=str(error))
        judged = [row for row in requests if part is None or part.begins_s <= row.arrival_s < part.ends_s]
        # A request alone meets no cached prefix, which it may have had in the traffic: that bounds nothing.
        if not judged or (trial.is_alone and any(row.hash_ids is not None for row in judged)):
            return TrialResult(True, {})
        played = worst(judged, trial.at_means) if trial.is_alone else requests
        names = None if part is None or trial.is_alone else {row.request_id for row in judged}
        simulated = deploy(run.engine, run.target)
        if trial.doubt:
            simulated = simulated.doubted_by(abs(trial.doubt), math.copysign(1, trial.doubt))
        terms = simulated.terms(asked_terms(plan.terms))
        # Faults may bring requests that the traffic does not have: no part of a run says what all allow.
        question = None
        if not trial.to_the_end and run.target.faults in (None, "none"):
            every = max(EVERY, len(judged) // LOOKS)
            lost = loses(terms.objectives, judged, simulated.front_end_s, every, judged=names)
            question = lost if names is None else Decided(lost, names)
        recorder = self._replayed(run, played, simulated, Unkept(), question)
        rows = Rows.of(recorder.columns)
        if names is not None:
            rows = rows.chosen(marked(recorder, names))
        num_played = len(played if names is None else judged)
        times = latencies(rows, simulated.front_end_s)
        found = verdicts(terms.objectives, rows, times)
        values = {each.objective.metric.name: each.value_s for each in found}
        done = int(rows.is_done.sum())
        # Spikes add requests, and a run that is stopped has not seen all: whichever are more count.
        unfinished = max(len(rows.reason), num_played) - done
        was_stopped = len(rows.reason) < num_played or None in rows.reason
        # Requests under way may yet have had an answer: those that ended say what was missed.
        if was_stopped:
            values = percentiles((each.metric for each in terms.objectives), rows, times)
        if trial.is_alone and not trial.at_means:
            held = not loses(terms.objectives, judged, simulated.front_end_s, every=1)(recorder)
        else:
            held = not was_stopped and all_held(found)
        refusals = recorder.refusals.counts.items()
        turned_away = [f"{count(number, 'request')} refused: {reason}" for reason, number in refusals]
        return TrialResult(
            is_held=held,
            values={name: value for name, value in values.items() if not math.isnan(value)},
            share=done / num_played if unfinished else 1.0,
            num_unfinished=unfinished,
            was_stopped=was_stopped,
            num_requests=len(judged),
            prompt_tokens=int(rows.num_prompt_tokens.sum()),
            output_tokens=int(rows.num_output_tokens.sum()),
            span_s=judged[-1].arrival_s - judged[0].arrival_s if part is None else part.span_s,
            turned_away="; ".join(turned_away) or None,
            doubt=simulated.doubt,
        )

    def _traffic(self, run: CellRun, trial: FleetTrial) -> "tuple[list[TraceRequest], JudgedPart | None]":
        """Return the requests of a trial, and the part to judge: None judges all of them. Raises
        ConfigError.
        """
        from sundog.planning.settled import is_steady, settled_traffic
        from sundog.sim.workload.read import parse_spec

        workload = with_fields(self._plan.workload, trial.settings)
        is_described = run.load.request_rate is None and not self._plan.resample
        rest = trial
        if is_described and trial.load != 1.0 and (denser := at_load(workload, trial.load)) is not None:
            workload, rest = denser, trial._replace(load=1.0)
        elif not is_described or "scaled" in workload:
            return changed_traffic(self._arriving(run), trial), None
        source = parse_spec(workload, self._plan.where)
        if self._plan.judged_s and trial.window_s is None and is_steady(source):
            requests, part = settled_traffic(source, run.engine.seed, self._plan.judged_s)
        else:
            requests, part = self._given(source, run.engine.seed), None
        if not requests:
            raise ConfigError(f"{self._plan.where} gives no request with seed {run.engine.seed}")
        return changed_traffic(requests, rest), part


@dataclass(slots=True)
class Decided:
    """Test whether a trial may end: an objective can no longer be met, or all judged requests have ended."""

    is_lost: "Callable[[Recorder], bool]"
    judged: Set[str]
    _num_asked: int = 0
    _num_rows: int = 0
    """Rows from the first on that are not judged, or have ended."""
    _num_ended: int = 0

    def __call__(self, recorder: "Recorder") -> bool:
        self._num_asked += 1
        return self.is_lost(recorder) or (self._num_asked % LOOK == 0 and self._have_ended(recorder))

    def _have_ended(self, recorder: "Recorder") -> bool:
        names, reasons = recorder.columns.request_id, recorder.columns.reason
        for place in range(self._num_rows, len(names)):
            if names[place] in self.judged:
                if reasons[place] is None:
                    break
                self._num_ended += 1
            self._num_rows += 1
        return self._num_ended == len(self.judged)


LOOK = 100
"""Arrivals and ends between two looks for judged requests that have not ended."""
LOOKS = 64
"""Checks of the objectives per arrival of all judged requests, if they are many: each covers all requests."""
RATES = ("rate_per_s", "on_rate_per_s", "off_rate_per_s")
"""Keys of arrivals that set how often sessions begin."""


def at_load(workload: dict[str, Any], load: float) -> dict[str, Any] | None:
    """Return the description with `load` times as many arrivals in the same time; None if it has no rates.

    Compressed start times would instead begin all sessions before the pauses of the first had ended.
    """
    parts = workload.get("populations", [workload])
    denser = []
    for part in parts:
        arrivals = part.get("arrivals", {})
        if not any(name in arrivals for name in RATES):
            return None
        scaled = {name: arrivals[name] * load for name in RATES if name in arrivals}
        denser.append({**part, "arrivals": {**arrivals, **scaled}})
    return {**workload, "populations": denser} if "populations" in workload else denser[0]


def changed_traffic(requests: "list[TraceRequest]", trial: FleetTrial) -> "list[TraceRequest]":
    """Return the requests of a window, at another load, or of mean lengths."""
    if trial.window_s is not None:
        requests = within(requests, *trial.window_s)
    if trial.at_means:
        requests = of_mean_lengths(requests)
    if trial.load != 1.0:
        requests = [row._replace(arrival_s=row.arrival_s / trial.load) for row in requests]
    return requests


def of_mean_lengths(requests: "list[TraceRequest]") -> "list[TraceRequest]":
    """Return the requests with mean lengths, and with as much of their prompts repeated as before.

    Requests whose prompts begin alike share a prefix. Its length is such that an unlimited cache would find
    as many tokens of it as it finds in the original requests.
    """
    count = len(requests)
    prompt = round(sum(row.num_prompt_tokens for row in requests) / count)
    output = round(sum(row.num_output_tokens for row in requests) / count)
    size = max(row.hash_block_tokens for row in requests)
    prefixes = _shared_prefixes(requests, prompt // size) if size else [None] * count
    next_id = 1 + max((max(ids) for ids in prefixes if ids), default=-1)
    found = []
    for row, shared in zip(requests, prefixes, strict=True):
        ids = None
        if shared is not None:
            num_new = prompt // size - len(shared)
            ids = (*shared, *range(next_id, next_id + num_new))
            next_id += num_new
        found.append(
            row._replace(
                num_prompt_tokens=prompt,
                num_output_tokens=output,
                hash_ids=ids,
                hash_block_tokens=0 if ids is None else size,
            )
        )
    return found


def _shared_prefixes(requests: "list[TraceRequest]", most: int) -> list[tuple[int, ...] | None]:
    """Return for each request the ids of at most `most` blocks that it shares with others of the same
    prefix.
    """
    known: set[int] = set()
    num_found = num_blocks = 0
    for row in requests:
        own = row.hash_ids or ()
        repeated = sum(each in known for each in own)
        num_found, num_blocks = num_found + (repeated > 0), num_blocks + repeated
        known.update(own)
    length = min(round(num_blocks / num_found), most) if num_found else 0
    places: dict[int, int] = {}
    found: list[tuple[int, ...] | None] = []
    for row in requests:
        if row.hash_ids is None:
            found.append(None)
            continue
        first = places.setdefault(row.hash_ids[0], len(places)) * length if row.hash_ids else 0
        found.append(tuple(range(first, first + length)) if row.hash_ids else ())
    return found


def within(requests: "list[TraceRequest]", begin_s: float, end_s: float) -> "list[TraceRequest]":
    """Return the sessions that begin from `begin_s` to before `end_s`, whole, with times counted from
    `begin_s`.
    """
    kept: set[str] = set()
    found = []
    for row in requests:
        if not kept.isdisjoint(row.after) if row.after else begin_s <= row.arrival_s < end_s:
            kept.add(row.request_id)
            found.append(row._replace(arrival_s=row.arrival_s - begin_s))
    return found


def worst(requests: "list[TraceRequest]", are_equal: bool) -> "list[TraceRequest]":
    """Return requests that test whether a replica per request suffices: the longest ones, one after another.

    They are a sixth of all, so that missing a percentile above the 84th proves the fleet hopeless; if none is
    missed, nothing is proved. If all requests are equal, one of them suffices.
    """
    longest = sorted(requests, key=lambda row: -row.num_prompt_tokens)
    chosen = longest[: 1 if are_equal else math.ceil(len(requests) / 6)]
    return [row._replace(arrival_s=0.0, after=(), session=None) for row in chosen]
