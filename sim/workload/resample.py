"""Resampled traces: a recorded one with other arrivals, or as another recording might have been.

Consecutive requests are alike (a burst, a long conversation, a busy hour), so whole blocks of them are
sampled: the circular block bootstrap (Politis and Romano, "A circular block-resampling procedure for
stationary data", 1992), over gaps between arrivals together with the requests.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat

import numpy as np

from sundog.actors.core.config import ConfigError
from sundog.sim.trace.programs import Programs
from sundog.sim.trace.record import TraceRequest, default_id
from sundog.sim.workload import stream


def retimed(trace: Iterable[TraceRequest], rate_per_s: float, seed: int) -> Iterator[TraceRequest]:
    """Yield the requests in their order, as a Poisson process, or at once if the rate is infinite.

    Raises ConfigError for rows that follow others, whose times depend on these.
    """
    rng, now_s = stream(seed, "arrivals"), 0.0
    gaps = repeat(0.0) if rate_per_s == np.inf else _gaps(rng, rate_per_s)
    for row in trace:
        if row.after:
            raise ConfigError(
                f"request_rate is for independent requests, and {row.request_id} comes after"
                f" {row.after[0]}: leave it out"
            )
        now_s = round(now_s + next(gaps), 6)
        yield row._replace(arrival_s=now_s)


def _gaps(rng: "np.random.Generator", rate_per_s: float) -> Iterator[float]:
    while True:
        yield from rng.exponential(1 / rate_per_s, 4096).tolist()


FEWEST = 20
"""Fewest sessions or single requests from which samples represent other recordings."""
NUM_BLOCKS = 20
"""Number of blocks of a trace: each can hold a burst, and there are enough to vary (as many as batch means
use).
"""
Unit = list[TraceRequest]
"""A request, and the later requests of its session."""


def resampled(trace: Sequence[TraceRequest], seed: int) -> list[TraceRequest]:
    """Sample as many sessions (or single requests) as the trace has, in order of arrival. O(requests).

    A session is sampled as a whole. In further copies of a session, contents that only it has are renamed, so
    that copies hit the prefix cache only where the trace's own sessions do.

    Raises ConfigError if there are fewer than `FEWEST`.
    """
    units = _units(trace)
    count = len(units)
    if count < FEWEST:
        raise ConfigError(
            f"--resample needs at least {FEWEST} requests or sessions, the trace has {count}: leave it out"
        )
    length = -(-count // NUM_BLOCKS)
    starts = stream(seed, "resampled blocks").integers(0, count, -(-count // length)).tolist()
    drawn = [(start + i) % count for start in starts for i in range(length)][:count]
    rows = sorted(_rows(units, drawn, _shared(units)), key=lambda row: row.arrival_s)
    if any(row.session is not None for row in rows):
        return rows
    return [row._replace(request_id=default_id(i)) for i, row in enumerate(rows)]


def _rows(units: Sequence[Unit], drawn: Sequence[int], shared: set[int]) -> Iterator[TraceRequest]:
    begins = [unit[0].arrival_s for unit in units]
    mean_gap_s = (begins[-1] - begins[0]) / max(len(begins) - 1, 1)
    most = max((i for unit in units for row in unit for i in row.hash_ids or ()), default=0) + 1
    copies = [0] * len(units)
    now_s = begins[0]
    for place, number in enumerate(drawn):
        if place:  # Before the first of all there is no gap to draw.
            now_s += begins[number] - begins[number - 1] if number else mean_gap_s
        copy, copies[number] = copies[number], copies[number] + 1
        for row in units[number]:
            yield _copied(row, now_s - begins[number], f".{copy}", copy * most, shared)


def _copied(row: TraceRequest, later_s: float, mark: str, shift: int, shared: set[int]) -> TraceRequest:
    ids = row.hash_ids
    return row._replace(
        request_id=row.request_id + mark,
        arrival_s=max(round(row.arrival_s + later_s, 9), 0.0),
        hash_ids=None if ids is None else tuple(i if i in shared else i + shift for i in ids),
        session=None if row.session is None else row.session + mark,
        after=tuple(name + mark for name in row.after),
    )


def _units(trace: Sequence[TraceRequest]) -> list[Unit]:
    programs, rows = Programs(), {row.request_id: row for row in trace}
    for row in trace:
        programs.ties(row.request_id, row.after)
    units = [
        sorted((rows[name] for name in part), key=lambda row: row.arrival_s) for part in programs.parts()
    ]
    return sorted(units, key=lambda unit: unit[0].arrival_s)


def _shared(units: Sequence[Unit]) -> set[int]:
    owner: dict[int, int] = {}
    shared = set()
    for number, unit in enumerate(units):
        for row in unit:
            for i in row.hash_ids or ():
                if owner.setdefault(i, number) != number:
                    shared.add(i)
    return shared
