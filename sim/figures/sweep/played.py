"""Run as kept by an experiment: its requests as columns, and its engines' work before each.

A run is made in one process and measured in another, when it is known which requests of its seed are warm-up:
so it carries everything that figures of the rest need, and no step. A run that `replay --out` kept on disk is
read as the same record.

Law: runs with the same arrivals are measured over the same requests. Each of them reports when it settled,
and the warm-up of any is left out of all: two settings whose warm-ups end at different requests would
otherwise differ by the requests that only one of them counts. Runs with other arrivals do not take part,
because their ids name other requests, and a run that never settles removes nothing.
"""

import hashlib
import math
import os
import pickle
import tempfile
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sundog.sim.figures.engine import Replicas
from sundog.sim.figures.intervals import FEWEST, drifts, find_warm_up
from sundog.sim.figures.load import saturation
from sundog.sim.figures.metrics import paid_terms, scaling_of
from sundog.sim.figures.named import LATENCIES, NAMES, PERCENT, PROGRAM, TENANT, WHOLE, Metric
from sundog.sim.figures.sweep.cells import FailedRun, Job, Measures
from sundog.sim.figures.tenants import tenants_of
from sundog.sim.figures.totals import Paid, RequestTotals, RunTerms, part_of, percentiles
from sundog.sim.figures.verdict import all_held, verdicts
from sundog.sim.fleet.figures import MissedAlone, ScalingFigures
from sundog.sim.record.columns import USED, StepColumns
from sundog.sim.record.recorder import Recorder
from sundog.sim.record.rows import Floats, Ints, Rows, group_column, latencies
from sundog.sim.record.run_directory import open_run
from sundog.sim.record.run_writer import rows_of
from sundog.sim.trace.programs import Programs
from sundog.sim.trace.record import TraceRequest

if TYPE_CHECKING:
    import pyarrow as pa

Load = Sequence[TraceRequest]


class StepSpans(NamedTuple):
    """Steps of one replica; the last three columns are the `Blocks` of each step, -1 if missing."""

    start_s: Floats
    end_s: Floats
    before: Ints
    held: Ints
    after: Ints

    @classmethod
    def of(cls, steps: StepColumns) -> "StepSpans":
        """Return the steps that a recorder has in memory."""
        end_s = np.array(steps.end_s, dtype=np.float64)
        sizes = group_column(steps.groups, "num_steps")
        last = (np.cumsum(sizes) - 1)[sizes > 0]
        start_s = np.concatenate((np.zeros(1), end_s))[: len(end_s)]
        start_s[last - sizes[sizes > 0] + 1] = np.array(steps.groups.column("start_s"))[sizes > 0]
        blocks = np.full((len(USED), len(end_s)), -1, dtype=np.int64)
        for row, name in zip(blocks, USED, strict=True):
            row[last] = group_column(steps.groups, name)[sizes > 0]
        return cls(start_s, end_s, *blocks)

    def busy_before(self, instants_s: Floats) -> Floats:
        """Return the seconds before each instant in which a step ran; overlaps count once."""
        if not len(self.end_s):
            return np.zeros(len(instants_s))
        start_s = np.maximum(self.start_s, np.concatenate((np.zeros(1), self.end_s[:-1])))
        ended = np.searchsorted(self.end_s, instants_s, side="right")
        whole = np.concatenate((np.zeros(1), np.cumsum(self.end_s - start_s)))
        running = np.minimum(ended, len(start_s) - 1)
        part = np.where(ended < len(start_s), np.maximum(instants_s - start_s[running], 0.0), 0.0)
        busy: Floats = whole[ended] + part
        return busy

    def block_seconds_before(self, instants_s: Floats) -> Floats:
        """Return the KV blocks in use, integrated over the time before each instant, like `KvUse`."""
        times, reached, left = self._turns()
        if not len(times):
            return np.zeros(len(instants_s))
        sums = np.concatenate((np.zeros(1), np.cumsum(np.diff(times) * (left[:-1] + reached[1:]) / 2)))
        place = np.clip(np.searchsorted(times, instants_s, side="right") - 1, 0, len(times) - 1)
        after = np.minimum(place + 1, len(times) - 1)
        within_s = np.clip(instants_s, times[0], times[-1]) - times[place]
        span_s = times[after] - times[place]
        share = np.divide(within_s, span_s, out=np.zeros(len(place)), where=span_s > 0)
        now = left[place] + share * (reached[after] - left[place])
        found: Floats = sums[place] + within_s * (left[place] + now) / 2
        return found

    def _turns(self) -> tuple[Floats, Floats, Floats]:
        """Return instants between which the use of blocks grows linearly, and the use before and after each
        instant.
        """
        ends, prefills = np.flatnonzero(self.held >= 0), np.flatnonzero(self.before >= 0)
        if not len(ends):
            return np.zeros(0), np.zeros(0), np.zeros(0)
        before_s = np.concatenate((self.start_s[:1], self.end_s[:-1]))
        idle = np.flatnonzero(self.start_s > before_s)
        last = np.searchsorted(ends, idle) - 1
        still = np.where(last < 0, 0, self.after[ends[last]])
        begin_s = np.maximum(self.start_s, before_s)
        # In the order of steps; of one step idleness ends, then its blocks are taken, then others released.
        order = np.argsort(np.concatenate((3 * idle, 3 * prefills + 1, 3 * ends + 2)))
        times = np.concatenate((begin_s[idle], begin_s[prefills], self.end_s[ends]))
        reached = np.concatenate((still, self.before[prefills], self.held[ends]))
        left = np.concatenate((still, self.held[prefills], self.after[ends]))
        first_s = self.start_s[:1]
        return (
            np.concatenate((first_s, times[order])),
            np.concatenate((np.zeros(1), reached[order])),
            np.concatenate((np.zeros(1), left[order])),
        )


@dataclass(frozen=True, slots=True)
class Played:
    """Requests of a run in order of arrival, and sums of time before each arrival and before the end.

    `load` identifies the arrivals that the run was given: runs with an equal one can be compared request by
    request. `busy_s` and `block_seconds` are sums over replicas, with one element more than there are
    requests; `last_end_s` is when the last step of all replicas ended; `programs_s` has begins and spans.
    """

    rows: Rows
    request_ids: list[str]
    terms: RunTerms
    front_end_s: float
    num_replicas: int
    num_blocks: int
    busy_s: Floats
    block_seconds: Floats
    last_end_s: float
    load: bytes
    programs_s: Floats
    missed_alone: MissedAlone | None = None

    @classmethod
    def of(
        cls,
        rows: Rows,
        request_ids: list[str],
        spans: Iterable[StepSpans],
        *,
        front_end_s: float,
        num_blocks: int,
        terms: RunTerms,
        load: bytes,
        programs: Programs,
        scaling: ScalingFigures | None = None,
    ) -> "Played":
        """Return a run from rows and each replica's steps; `num_blocks` is without the null block.

        A fleet that scaled pays for its mean number of GPUs, not for all.
        """
        instants_s = np.append(rows.arrival_s, np.inf)
        known = list(spans)
        busy_s = np.sum([each.busy_before(instants_s) for each in known], axis=0)
        block_seconds = np.sum([each.block_seconds_before(instants_s) for each in known], axis=0)
        last_end_s = max((float(each.end_s[-1]) for each in known if len(each.end_s)), default=0.0)
        return cls(
            rows,
            request_ids,
            terms=paid_terms(terms, scaling),
            front_end_s=front_end_s,
            num_replicas=len(known),
            num_blocks=num_blocks,
            busy_s=busy_s,
            block_seconds=block_seconds,
            last_end_s=last_end_s,
            load=load,
            programs_s=np.array(programs.spans_s()).reshape(-1, 2).T,
            missed_alone=None if scaling is None else scaling.missed_alone,
        )

    @property
    def fates(self) -> bytes:
        """Digest of each request's events and their times: equal for equal runs."""
        found = hashlib.blake2b("\n".join(self.request_ids).encode(), digest_size=16)
        for name in ("arrival_s", "first_scheduled_s", "first_token_s", "finish_s"):
            found.update(np.asarray(getattr(self.rows, name), dtype=np.float64).tobytes())
        return found.digest()

    def kept(self, left_out: Collection[str]) -> NDArray[np.bool_]:
        """Return a mask of all requests except those in `left_out`."""
        return np.array([name not in left_out for name in self.request_ids], dtype=bool)


def load_of(requests: Iterable[TraceRequest]) -> bytes:
    """Return a digest of arrivals: equal for equal ids at equal times, after equal requests."""
    found = hashlib.blake2b(digest_size=16)
    for row in requests:
        found.update(f"{row.request_id} {row.arrival_s!r} {row.after} {row.pause_s!r}\n".encode())
    return found.digest()


def played(recorder: Recorder, terms: RunTerms, load: bytes) -> Played:
    """Return a run that its recorder has in memory."""
    return Played.of(
        Rows.of(recorder.columns),
        list(recorder.columns.request_id),
        map(StepSpans.of, recorder.steps),
        front_end_s=recorder.front_end_s,
        num_blocks=recorder.num_blocks - 1,
        terms=terms,
        load=load,
        programs=recorder.programs,
        scaling=scaling_of(recorder),
    )


def chosen(rows: Rows, kept: NDArray[np.bool_]) -> Rows:
    """Return the rows of the kept requests."""
    where = np.flatnonzero(kept).tolist()
    columns = (c[kept] if isinstance(c, np.ndarray) else [c[i] for i in where] for c in rows)
    return Rows._make(columns)


def read_played(
    folder: Path, *, front_end_s: float, num_replicas: int, num_blocks: int, terms: RunTerms, load: Load
) -> Played:
    """Read the run in the folder; raises RunError. `num_blocks` is each replica's, without the null block."""
    run = open_run(folder)
    requests, steps = run.requests(), run.steps()
    scaling = run.summary.get("fleet", {}).get("scaling")
    if scaling and (missed := scaling.get("missed_alone")):
        scaling = {**scaling, "missed_alone": MissedAlone(**missed)}
    rows, names = rows_of(requests), requests["request_id"].to_pylist()
    ends = {names[i]: float(rows.finish_s[i]) for i in np.flatnonzero(rows.is_done)}
    return Played.of(
        rows,
        names,
        [_spans(steps, replica) for replica in range(num_replicas)],
        front_end_s=front_end_s,
        num_blocks=num_blocks,
        terms=terms,
        load=load_of(load),
        scaling=ScalingFigures(**scaling) if scaling else None,
        programs=Programs.of(load, dict(zip(names, rows.arrival_s.tolist(), strict=True)), ends),
    )


def _spans(steps: "pa.Table", replica: int) -> StepSpans:
    own = steps["replica"].to_numpy() == replica
    blocks = (steps[name].fill_null(-1).to_numpy()[own] for name in USED)
    return StepSpans(steps["start_s"].to_numpy()[own], steps["end_s"].to_numpy()[own], *blocks)


def measured(
    jobs: Iterable[Job],
    outcomes: Iterable[Played | FailedRun],
    warmup_s: float | None,
    metrics: Sequence[Metric] = (),
) -> Iterator[Measures | FailedRun]:
    """Yield the figures of each run, in the order of the jobs, which list one seed after another.

    `metrics` are needed besides those that every run has: other percentiles, and percentiles of tenants.
    """
    seed: int | None = None
    group = _OneSeed(warmup_s)
    for job, outcome in zip(jobs, outcomes, strict=True):
        if job[1] != seed:
            yield from group.measured(metrics)
            seed, group = job[1], _OneSeed(warmup_s)
        group.add(outcome)
    yield from group.measured(metrics)


class Shelf:
    """Storage of runs on disk, so that memory does not grow with the number of runs."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # closed when the shelf is forgotten
        weakref.finalize(self, self._file.close)

    def put(self, run: Played) -> int:
        """Store a run; return its place."""
        place = self._file.seek(0, os.SEEK_END)
        pickle.dump(run, self._file, pickle.HIGHEST_PROTOCOL)
        return place

    def get(self, place: int) -> Played:
        """Return the run stored at this place."""
        self._file.seek(place)
        run = pickle.load(self._file)
        assert isinstance(run, Played), run
        return run


class _OneSeed:
    def __init__(self, warmup_s: float | None) -> None:
        self._warmup_s = warmup_s
        self._shelf = Shelf()
        self._runs: list[FailedRun | tuple[int, bool]] = []
        """Place of each run, and whether it settled."""
        self._early: dict[bytes, set[str]] = {}

    def add(self, outcome: Played | FailedRun) -> None:
        if isinstance(outcome, FailedRun):
            self._runs.append(outcome)
            return
        own, is_settled = warm_up(outcome, self._warmup_s)
        self._early.setdefault(outcome.load, set()).update(own)
        self._runs.append((self._shelf.put(outcome), is_settled))

    def measured(self, metrics: Sequence[Metric]) -> Iterator[Measures | FailedRun]:
        for each in self._runs:
            if isinstance(each, FailedRun):
                yield each
                continue
            place, is_settled = each
            run = self._shelf.get(place)
            # A time that was asked for is that time in every run, also where clients wait for answers.
            early = (
                self._early[run.load] if self._warmup_s is None else warm_up(run, self._warmup_s).request_ids
            )
            yield measure(run, early, is_settled, metrics)


class Early(NamedTuple):
    """Requests of a run's warm-up, and whether TTFT has settled after them."""

    request_ids: set[str]
    is_settled: bool


def warm_up(run: Played, warmup_s: float | None) -> Early:
    """Return the requests that arrive before `warmup_s`, or, with None, before TTFT settles."""
    done, ttft_s = run.rows.is_done, latencies(run.rows, run.front_end_s).ttft_s
    if warmup_s is not None:
        early = run.rows.arrival_s < warmup_s
        is_settled = not drifts(ttft_s[done & ~early])
    else:
        num_early, is_settled = find_warm_up(ttft_s[done])
        early = np.cumsum(done) <= num_early if num_early else np.zeros(len(done), dtype=bool)
    return Early({run.request_ids[i] for i in np.flatnonzero(early).tolist()}, is_settled)


def measure(
    run: Played, left_out: set[str], is_settled: bool = True, metrics: Sequence[Metric] = ()
) -> Measures:
    """Measure a run without these requests: latencies of finished ones, and figures of all together.

    Time is counted from the first kept arrival until the last request and the last step have ended: without a
    warm-up every figure equals that of `replay`. All are NaN if a warm-up leaves fewer than `FEWEST` finished
    requests.
    """
    kept = run.kept(left_out)
    rows = chosen(run.rows, kept)
    times, done = latencies(rows, run.front_end_s), rows.is_done
    num_early = float((run.rows.is_done & ~kept).sum())
    found = {"num_warmup": num_early, "num_measured": float(done.sum()), "unsettled": float(not is_settled)}
    if found["num_warmup"] and found["num_measured"] < FEWEST:
        return found | dict.fromkeys((*NAMES, *(each.name for each in metrics)), math.nan)
    for name in LATENCIES:
        values = getattr(times, name)[done]
        values = values[~np.isnan(values)]
        for part, percent in PERCENT.items():
            found[f"{name}.{part}"] = part_of(values, percent)
    totals = RequestTotals()
    met = run.terms.met(rows, times)
    totals.add(rows, met)
    replicas = Replicas(run.num_replicas)
    replicas.add(rows)
    whole = _whole(run, totals, replicas, int(np.argmax(kept)) if kept.any() else 0)
    took_s = run.programs_s[1][run.programs_s[0] >= rows.arrival_s.min(initial=math.inf)] + run.front_end_s
    found |= {each.name: part_of(took_s, each.percent) for each in metrics if each.figure == PROGRAM}
    tenants = tenants_of(rows, met, run.front_end_s)
    whole["fairness"], whole["slowdown_fairness"] = tenants.fairness, tenants.slowdown_fairness
    sizes = run.terms.max_num_running, run.num_blocks * run.num_replicas + 1, run.terms.block_size
    whole["saturation"] = saturation(lambda: iter([(rows, np.ones(len(done), dtype=bool))]), *sizes)
    objectives = run.terms.objectives
    found |= percentiles([*metrics, *(each.metric for each in objectives)], rows, times)
    whole["slo_held"] = float(all_held(verdicts(objectives, rows, times))) if objectives else None
    for name in WHOLE:
        value = whole[name]
        found[name] = math.nan if value is None else float(value)
    for tenant, figures in tenants.figures.items():
        for name, figure in asdict(figures).items():
            found[f"{TENANT}{tenant}.{name}"] = math.nan if figure is None else float(figure)
    return found


def _whole(run: Played, totals: RequestTotals, replicas: Replicas, first: int) -> dict[str, float | None]:
    span_s, terms = totals.duration_s(run.last_end_s), run.terms
    per_s = 1 / span_s if span_s else 0.0
    engines_s = (run.last_end_s - totals.first_arrival_s) * run.num_replicas
    per_engine_s = 1 / engines_s if engines_s > 0 else 0.0
    busy_s = float(run.busy_s[-1] - run.busy_s[first])
    block_seconds = float(run.block_seconds[-1] - run.block_seconds[first])
    tokens = totals.output_tokens
    paid = Paid.of(terms, span_s, tokens)
    return {
        "output_tokens_per_s": tokens * per_s,
        "requests_per_s": totals.num_finished * per_s,
        "prefix_hit_rate": totals.hit_tokens / max(totals.admitted_tokens, 1),
        "slo_attainment": totals.attainment,
        "goodput_requests_per_s": None if totals.num_met is None else totals.num_met * per_s,
        "busy_fraction": busy_s * per_engine_s,
        "kv_use_mean": block_seconds * per_engine_s / run.num_blocks,
        "num_preemptions": float(totals.num_preemptions),
        "recompute_tax": totals.recomputed_tokens / max(totals.prompt_tokens + tokens, 1),
        "imbalance": replicas.imbalance,
        "gpu_hours": paid.gpu_s / 3600,
        "num_finished": float(totals.num_finished),
        "num_aborted": float(totals.num_aborted),
        "num_refused": float(totals.num_refused),
        "num_failed": float(totals.num_failed),
        "finished_fraction": totals.num_finished / totals.num_requests if totals.num_requests else None,
        "cost_per_million_output_tokens": paid.cost_per_million_output_tokens,
    }
