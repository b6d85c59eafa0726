"""Figures of a run from a Recorder's columns; numpy, no loop over requests.

Times are seconds, per request unless said otherwise:

    TTFT      first token - arrival, plus the front end's time (E2E as well)
    TPOT      (finish - first token) / (output tokens - 1), requests with more than one
    ITL       time between a token and the previous one, over every token
    E2E       finish - arrival
    queueing  begin of the first step with the request - arrival
    prefill   first token - first step, decode  finish - first token: the other stages
    normal.   E2E / output tokens
    program   last token of requests that come after one another - first arrival of them
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from sundog.actors.core.records import dataclass
from sundog.sim.figures.distribution import AT_ONCE, Distribution, Part, distribution, distribution_of
from sundog.sim.figures.engine import (
    HostFigures,
    ReplicaFigures,
    Replicas,
    SpeculationFigures,
    engine_figures,
)
from sundog.sim.figures.load import saturation
from sundog.sim.figures.tenants import NO_TENANTS, TenantFigures, Tenants, tenants_of
from sundog.sim.figures.totals import NO_TERMS, Paid, RequestTotals, RunTerms
from sundog.sim.figures.verdict import verdicts
from sundog.sim.fleet.figures import FleetFigures, ScalingFigures
from sundog.sim.record.client_record import ClientRecord
from sundog.sim.record.columns import Columns, StepColumns
from sundog.sim.record.recorder import Recorder
from sundog.sim.record.rows import RequestTimes, Rows, joined, latencies, step_intervals


class Source(Protocol):
    """Rows of a run: in memory, or on disk."""

    def requests(self) -> Iterator[Rows]:
        """Yield all requests in order, in parts."""
        ...

    def intervals(self) -> Iterator[Part]:
        """Yield the intervals between the tokens of each request, in any order, with their counts."""
        ...


class InMemory:
    """Source with all rows and steps in memory."""

    def __init__(self, columns: Columns, steps: Sequence[StepColumns]) -> None:
        self._steps = steps
        self._rows = Rows.of(columns)

    def requests(self) -> Iterator[Rows]:
        yield self._rows

    def intervals(self) -> Iterator[Part]:
        for steps in self._steps:
            yield step_intervals(steps)
            yield np.array(steps.gaps_s), None


NORMALIZED = "normalized_latency_s"
FIGURES = ("ttft_s", "tpot_s", "e2e_s", "queueing_s", "prefill_s", "decode_s", NORMALIZED)


def distributions(
    source: Source, front_end_s: float, num_requests: int, at_once: int = AT_ONCE
) -> dict[str, Distribution | None]:
    """Return the distribution of each of `FIGURES`; a reading of the rows keeps at most `at_once` values.

    A run on disk is decompressed by each reading: once for 100,000 requests, four times for a million.
    """
    found: dict[str, Distribution | None] = {}
    together = at_once // max(num_requests, 1)
    for first in range(0, len(FIGURES), max(together, 1)):
        names = FIGURES[first : first + max(together, 1)]
        if together:
            kept: dict[str, list[Part]] = {name: [] for name in names}
            for parts in _read(source, front_end_s, names):
                for name, part in zip(names, parts, strict=True):
                    kept[name].append(part)
            found |= {name: distribution_of(partial(iter, parts)) for name, parts in kept.items()}
        else:
            (name,) = names
            found[name] = distribution_of(partial(_one, source, front_end_s, name))
    return found


def _one(source: Source, front_end_s: float, name: str) -> Iterator[Part]:
    return (part for (part,) in _read(source, front_end_s, (name,)))


def _read(source: Source, front_end_s: float, names: Sequence[str]) -> Iterator[list[Part]]:
    for rows in source.requests():
        times = latencies(rows, front_end_s)
        parts: list[Part] = []
        for name in names:
            if name == NORMALIZED:
                values = times.e2e_s / np.maximum(rows.num_output_tokens, 1)
            else:
                values = getattr(times, name)
            values = values[rows.is_done]
            parts.append((values[~np.isnan(values)], None))
        yield parts


@dataclass(frozen=True, slots=True)
class ClientFigures:
    """Figures of the clients; `lateness_s` is how late they sent requests, which is part of TTFT.

    `cpu_mean` is the mean share of a core that the `num_processes` used, `cpu_most` that of the busiest
    process in its busiest seconds; from about 0.8 on the client limits the measurement. `errors` counts
    requests by kind of error, including refusals and timeouts; `said` has the first words of each kind.
    `retry_after_s` is the longest wait that a refusal asked for.
    """

    model: str
    """Name of the model on the server."""
    lateness_s: Distribution | None
    lateness_max_s: float | None
    num_processes: int
    cpu_mean: float | None
    cpu_most: float | None
    tokens_per_chunk: float | None
    errors: dict[str, int]
    said: dict[str, str]
    retry_after_s: float | None

    @classmethod
    def of(cls, record: ClientRecord) -> "ClientFigures":
        columns = record.columns
        late_s = np.array(columns.sent_s) - np.array(columns.arrival_s)
        late_s = np.maximum(late_s[~np.isnan(late_s)], 0.0)
        num_tokens, shares = sum(columns.num_output_tokens), np.array(record.cpu_shares)
        return cls(
            record.model,
            distribution(late_s),
            lateness_max_s=float(late_s.max()) if len(late_s) else None,
            num_processes=len(shares),
            cpu_mean=float(shares[:, 0].mean()) if len(shares) else None,
            cpu_most=float(shares[:, 1].max()) if len(shares) else None,
            tokens_per_chunk=num_tokens / record.num_chunks if record.num_chunks else None,
            errors=dict(record.errors.most_common()),
            said=dict(record.said),
            retry_after_s=record.retry_after_s,
        )


@dataclass(frozen=True, slots=True)
class ObjectiveFigures:
    """Objective of a run, the value that it limits, and whether it was met.

    `num_unanswered` requests got no answer, and count as infinite (`sundog.sim.figures.verdict`). The value
    is None if it is infinite because of these, or if no request has one.
    """

    objective: str
    value_s: float | None
    is_held: bool
    num_unanswered: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Figures of a run; seconds, tokens and fractions. A distribution without values is None.

    Throughput counts finished requests, and tokens of finished requests, over `duration_s`: from the first
    arrival until the last request has ended, in whichever way, and the last step. `saturation` is the load
    over capacity (`sundog.sim.figures.load`); from 1 on the queue grows as long as the load lasts. Goodput
    counts requests that met every limit they have, their own or else that of `RunTerms`, of all that arrived.
    `busy_fraction` refers to all replicas' time until the last step ended. `fairness` is Jain's index of
    tenants' service while several wait, `slowdown_fairness` that of their slowdowns
    (`sundog.sim.figures.tenants`); None if unknown. Energy takes the GPUs' rated power all the time, cost
    their price: upper bounds for idle ones. `kv_use` fractions refer to all replicas' blocks together
    (`num_kv_blocks` each, or on average), the mean over the same time. The hit rate is prefix-hit tokens over
    prompt tokens of all admitted requests. With several `replicas` the JSON has each; `imbalance` is what the
    busiest computed over the mean. `refusals` counts refused requests by reason; it is in the JSON only if
    there are any. `num_cut` counts finished answers that the context or the KV cache ended early, in the JSON
    only if there are any: a replayed request has no other limit on its length. `lost_output_tokens` went to
    requests that did not finish, in the JSON only if there are any. `remarks` describe costs of steps that
    are not from measured kernels of this very model, in the JSON only if there are any. A run recorded by
    `client`s has None for everything that only engines record.
    """

    num_requests: int
    num_finished: int
    num_aborted: int
    num_refused: int = 0
    num_failed: int = 0
    """Number of requests that an error ended: their engine crashed, or their blocks were lost too often."""
    num_steps: int | None = None
    duration_s: float
    prompt_tokens: int
    output_tokens: int
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    ttft_s: Distribution | None
    tpot_s: Distribution | None
    itl_s: Distribution | None
    e2e_s: Distribution | None
    queueing_s: Distribution | None
    prefill_s: Distribution | None
    decode_s: Distribution | None
    num_kv_blocks: int | None = None
    kv_use_mean: float | None = None
    kv_use_max: float | None = None
    prefix_hit_tokens: int | None = None
    prefix_hit_rate: float | None = None
    num_preemptions: int | None = None
    recomputed_tokens: int | None = None
    normalized_latency_s: Distribution | None
    busy_fraction: float | None = None
    tokens_per_step: float | None = None
    saturation: float | None = None
    goodput_requests_per_s: float | None
    slo_attainment: float | None
    fairness: float | None
    slowdown_fairness: float | None
    tenants: dict[str, TenantFigures]
    energy_j_per_output_token: float | None
    cost_per_million_output_tokens: float | None
    replicas: tuple[ReplicaFigures, ...] = ()
    imbalance: float | None = None
    remarks: tuple[str, ...] = ()
    speculation: SpeculationFigures | None = None
    client: ClientFigures | None = None
    refusals: dict[str, int] = field(default_factory=dict)
    num_cut: int = 0
    lost_output_tokens: int = 0
    objectives: tuple[ObjectiveFigures, ...] = ()
    fleet: FleetFigures | None = None
    """Figures of a fleet with engines that differ or fail (`sundog.sim.fleet`)."""
    host: HostFigures | None = None
    program_s: Distribution | None = None
    """Seconds from the first arrival of a program of agents to its last token; None without programs."""
    step_doubt: float | None = None
    """Relative error of a replay's step times: they may take longer or shorter by it
    (`sundog.sim.cost.doubt`).
    """
    ranges_s: dict[str, Any] | None = None
    """Likely range of each figure in seconds, from `low` to `high`, and the percent by which E2E grows if
    steps are 1 % longer (`amplification`).

    The JSON has them if they were computed.
    """

    def to_json(self) -> str:
        """Return JSON with keys in a fixed order and floats at full precision: same run, same bytes."""
        figures = asdict(self)
        if not self.replicas:
            del figures["replicas"], figures["imbalance"]
        if self.fleet is not None and self.fleet.moves is None:
            del figures["fleet"]["moves"]
        names = ("remarks", "refusals", "num_cut", "lost_output_tokens", "objectives", "speculation")
        for name in (*names, "client", "fleet", "host", "program_s", "step_doubt", "ranges_s"):
            if not figures[name]:
                del figures[name]
        return json.dumps(figures, indent=2, allow_nan=False)


def request_times(recorder: Recorder) -> RequestTimes:
    """Return the latencies of every request that the recorder has in memory."""
    return latencies(Rows.of(recorder.columns), recorder.front_end_s)


def summarize(recorder: Recorder, terms: RunTerms = NO_TERMS, source: Source | None = None) -> Summary:
    """Return the figures of a run; latencies over finished requests, ITL over all tokens.

    `source` holds the rows if the recorder gave them to a sink. Memory is bounded by its parts.
    """
    source = source or InMemory(recorder.columns, recorder.steps)
    front_s = recorder.front_end_s
    replicas = Replicas(recorder.num_replicas)
    fleet = _fleet(recorder)
    terms = paid_terms(terms, None if fleet is None else fleet.scaling)
    totals, tenants = _summed(source, terms, front_s, replicas)
    blocks = sum(recorder.own_blocks) - recorder.num_replicas + 1
    last_step_s = max(each.last_end_s for each in recorder.steps)
    return replace(
        _seen(totals, tenants, terms, source, front_s, last_step_s),
        **engine_figures(recorder, totals.first_arrival_s),
        num_refused=recorder.refusals.total,
        num_cut=totals.num_cut,
        refusals=dict(recorder.refusals.counts),
        objectives=_objectives(source, terms, front_s),
        prefix_hit_tokens=totals.hit_tokens,
        prefix_hit_rate=totals.hit_tokens / max(totals.admitted_tokens, 1),
        num_preemptions=totals.num_preemptions,
        recomputed_tokens=totals.recomputed_tokens,
        saturation=saturation(
            lambda: ((rows, np.ones(len(rows.is_done), dtype=bool)) for rows in source.requests()),
            *(terms.max_num_running, blocks, terms.block_size),
        ),
        replicas=tuple(replicas.figures()) if recorder.num_replicas > 1 else (),
        imbalance=replicas.imbalance if recorder.num_replicas > 1 else None,
        speculation=SpeculationFigures.of(recorder.acceptance),
        fleet=fleet,
        host=HostFigures.of(recorder, totals.admitted_tokens),
        program_s=distribution(np.array([took_s for _, took_s in recorder.programs.spans_s()]) + front_s),
    )


def paid_terms(terms: RunTerms, scaling: ScalingFigures | None) -> RunTerms:
    """Return the terms with the mean number of GPUs that were paid for, if the fleet scaled."""
    return terms if scaling is None else replace(terms, num_gpus=terms.num_gpus * scaling.share)


def scaling_of(recorder: Recorder) -> ScalingFigures | None:
    """Return the figures of scaling, if the run's fleet scaled."""
    fleet = _fleet(recorder)
    return None if fleet is None else fleet.scaling


def _fleet(recorder: Recorder) -> FleetFigures | None:
    if recorder.ledger is None:
        return None
    found = recorder.ledger.figures(recorder)
    assert isinstance(found, FleetFigures)
    return found


def summarize_client(record: ClientRecord, terms: RunTerms = NO_TERMS) -> Summary:
    """Return the figures of a run that only clients recorded."""
    source = InMemory(record.columns, [record.gaps])
    totals, tenants = _summed(source, terms, 0.0, Replicas(1))
    hit_tokens, hit_rate = record.hits or (None, None)
    return replace(
        _seen(totals, tenants, terms, source, 0.0),
        num_refused=record.num_refused,
        prefix_hit_tokens=hit_tokens,
        prefix_hit_rate=hit_rate,
        client=ClientFigures.of(record),
        objectives=_objectives(source, terms, 0.0),
    )


def _seen(
    totals: RequestTotals,
    tenants: Tenants,
    terms: RunTerms,
    source: Source,
    front_s: float,
    last_step_s: float | None = None,
) -> Summary:
    over: dict[str, Any] = {**distributions(source, front_s, totals.num_requests)}
    duration_s, output_tokens = totals.duration_s(last_step_s), totals.output_tokens
    per_s = 1 / duration_s if duration_s else 0.0
    paid = Paid.of(terms, duration_s, output_tokens)
    return Summary(
        num_requests=totals.num_requests,
        num_finished=totals.num_finished,
        num_aborted=totals.num_aborted,
        num_failed=totals.num_failed,
        duration_s=duration_s,
        prompt_tokens=totals.prompt_tokens,
        output_tokens=output_tokens,
        requests_per_s=totals.num_finished * per_s,
        output_tokens_per_s=output_tokens * per_s,
        total_tokens_per_s=(totals.prompt_tokens + output_tokens) * per_s,
        itl_s=distribution_of(source.intervals),
        **over,
        goodput_requests_per_s=None if totals.num_met is None else totals.num_met * per_s,
        slo_attainment=totals.attainment,
        fairness=tenants.fairness,
        slowdown_fairness=tenants.slowdown_fairness,
        tenants=tenants.figures,
        energy_j_per_output_token=paid.energy_j_per_output_token,
        cost_per_million_output_tokens=paid.cost_per_million_output_tokens,
        lost_output_tokens=totals.lost_output_tokens,
    )


def _summed(
    source: Source, terms: RunTerms, front_end_s: float, replicas: Replicas
) -> tuple[RequestTotals, Tenants]:
    totals, owned = RequestTotals(), list[Rows]()
    for rows in source.requests():
        totals.add(rows, terms.met(rows, latencies(rows, front_end_s)))
        replicas.add(rows)
        if any(name is not None for name in rows.tenant):
            owned.append(rows)
    if not owned:
        return totals, NO_TENANTS
    together = joined(owned)
    met = terms.met(together, latencies(together, front_end_s))
    return totals, tenants_of(together, met, front_end_s)


def _objectives(source: Source, terms: RunTerms, front_end_s: float) -> tuple[ObjectiveFigures, ...]:
    if not terms.objectives:
        return ()
    rows = joined(list(source.requests()))
    found = verdicts(terms.objectives, rows, latencies(rows, front_end_s))
    return tuple(
        ObjectiveFigures(each.objective.text, each.known_s, each.is_held, each.num_unanswered)
        for each in found
    )
