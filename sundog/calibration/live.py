"""Loads that `sundog calibrate URL` puts on a server: each rate in short repetitions, one rate after another.

A machine that others use is faster in one minute than in the next. Repetitions expose all rates to this
alike, and the differences between those of one rate limit the accuracy of any prediction. After the rates of
each repetition come bursts: equal short prompts, all sent at once to the idle server.
"""

import random
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle, islice
from typing import NamedTuple

import numpy as np

from sundog.actors.config import ConfigError
from sundog.builds.measuring import ClientLoad, as_answered, find
from sundog.calibration.front import Burst, BurstOnce, bursts_of
from sundog.calibration.loads import MeasuredLoad, means_of
from sundog.calibration.served import seen
from sundog.ends import remark
from sundog.options.clients import ENDPOINTS, ServerLoads, parse_bursts, parse_rates
from sundog.options.row import refuse
from sundog.options.simulation import ReadingOptions
from sundog.runtime.load.rows import Outcome
from sundog.runtime.load.server import TargetServer
from sundog.sim.figures.fit_requests import Observed
from sundog.sim.figures.metrics import Summary
from sundog.sim.record.client_record import ClientRecord, Seen
from sundog.sim.show.progress import runs_progress
from sundog.sim.trace.record import TraceRequest
from sundog.sim.workload.read import read_spec
from sundog.sim.workload.resample import retimed

ROUNDS, FEWEST = 5, 4
"""Repetitions of each rate, and the fewest requests of each."""
MOST_ROWS = 100_000
"""Most rows of a trace to read, and most requests of a repetition."""
MOST_FAILED = 0.02
"""Share of a repetition's requests that may fail and be left out."""
DONE = ("stop", "length")
PROMPTS, ANSWERS = (32, 384), (16, 128)
"""Bounds of the tokens of requests if no trace is given."""
BURST_PROMPT, BURST_ANSWER = 32, 1
"""Tokens of a request of a burst: what its engine computes takes little beside its way to the engine."""
FEWEST_SIZES = 2
"""Fewest sizes of bursts: each is predicted by the others."""


class LoadsAndBursts(NamedTuple):
    """Loads and bursts of a server."""

    loads: list[MeasuredLoad]
    bursts: tuple[Burst, ...]


def measure_loads(
    url: str, trace: str | None, asked: ServerLoads, reading: ReadingOptions, seed: int
) -> LoadsAndBursts:
    """Put all rates and bursts on the server, one after another, in repetitions.

    ConfigError if too many requests of a load fail, or any of the first burst.
    """
    if asked.request_rate is None:
        raise ConfigError(
            f"--request-rate is missing: name the loads to put on {url}: give three, as in 2,6,10"
        )
    rates, sizes = parse_rates(asked.request_rate), parse_bursts(asked.bursts)
    num_loads = 1 + ROUNDS * len(rates)
    seconds = asked.load_seconds / num_loads
    for rate in rates:
        if not 1 <= rate * seconds <= MOST_ROWS:
            raise ConfigError(
                f"--request-rate {rate:g} is {rate * seconds:.2g} requests in a round of {seconds:.3g} s:"
                f" give 1 to {MOST_ROWS:,}, by another rate or other --load-seconds"
            )
    load = ClientLoad(url, asked.model, ENDPOINTS[asked.endpoint], asked.api_key)
    server, rows = find(load), _rows(trace, reading, seed)
    for text in server.remarks:
        remark(text)
    loads, bursts = list[MeasuredLoad](), list[BurstOnce]()
    with runs_progress("loads") as on_progress:

        def measured(rate: float) -> MeasuredLoad:
            num, number = max(FEWEST, round(rate * seconds)), len(loads)
            block = [row._replace(request_id=str(index)) for index, row in enumerate(islice(rows, num))]
            found = _measured(load, server, list(retimed(block, rate, seed + number)), f"{rate:g}/s")
            on_progress(number + 1, num_loads)
            return found

        # The first load and the first burst warm the server up, and do not count.
        loads.append(measured(max(rates)))
        if sizes:
            _warm_burst(load, server, max(sizes), len(sizes) * ROUNDS)
        for _ in range(ROUNDS):
            for rate in rates:
                loads.append(measured(rate))
            for size in sizes:
                if isinstance(burst := one_burst(load, server, size), BurstOnce):
                    bursts.append(burst)
                else:
                    remark(f"a burst of {size} requests is left out: {burst}")
    if sizes and len({burst.size for burst in bursts}) < FEWEST_SIZES:
        remark("bursts of fewer than two sizes are left: the front end is fitted to the loads alone")
        bursts.clear()
    return LoadsAndBursts(loads[1:], bursts_of(bursts))


def _warm_burst(load: ClientLoad, server: TargetServer, size: int, num_bursts: int) -> None:
    begin_s = time.monotonic()
    if not isinstance(found := one_burst(load, server, size), BurstOnce):
        raise ConfigError(
            f"a burst of {size} requests fails: {found}: give smaller --bursts, or --bursts none"
        )
    lasted_s = time.monotonic() - begin_s
    remark(
        f"{num_bursts} bursts of up to {size} requests add up to {num_bursts * lasted_s:.0f} s to the loads"
    )


class _BurstRecord(ClientRecord):
    """Recorder that also keeps when each request was written, and the client's processor time."""

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.written_s: list[float] = []
        self.client_s = 0.0
        self._begin_s: float | None = None

    def due(self, row: TraceRequest, seen: Seen) -> None:
        if self._begin_s is None:
            self._begin_s = time.process_time()
        super().due(row, seen)

    def ended(self, row: TraceRequest, seen: Seen) -> None:
        super().ended(row, seen)
        if isinstance(seen, Outcome):
            self.written_s.append(seen.written_s)
        self.client_s = time.process_time() - (self._begin_s or 0.0)


def one_burst(load: ClientLoad, server: TargetServer, size: int) -> BurstOnce | str:
    """Send requests at once; return their times, or the reason why they do not count."""
    rows = [TraceRequest(str(index), 0.0, BURST_PROMPT, BURST_ANSWER) for index in range(size)]
    record = _BurstRecord(server.model)
    seen(load, server, rows, record)
    columns = record.columns
    if num_failed := sum(reason not in DONE for reason in columns.reason):
        return (
            f"the server did not answer {num_failed} of {size} requests: {record.said or dict(record.errors)}"
        )
    first_s, written_s = np.array(columns.first_token_s), np.array(record.written_s)
    if not np.isfinite(first_s).all() or not np.isfinite(written_s).all():
        return "an answer has no token, or its request no time of sending"
    return BurstOnce(
        round(float(np.mean(columns.num_prompt_tokens))),
        written_s.tolist(),
        first_s.tolist(),
        client_s=record.client_s,
    )


def _rows(trace: str | None, reading: ReadingOptions, seed: int) -> Iterator[TraceRequest]:
    """Yield the requests of a trace or workload, repeated without end; without one, requests of random
    lengths.
    """
    if trace is None:
        refuse((reading,), "is for a trace, and none is given: name one, or leave it out")
        return _drawn(random.Random(seed))
    if trace.endswith(".toml"):
        refuse((reading,), f"is for a trace, and {trace} describes a workload: leave it out", but=("limit",))
        source: Iterable[TraceRequest] = read_spec(trace).requests(seed)
    else:
        source = found = reading.trace(trace)
        for text in found.remarks:
            remark(text)
    rows = list(islice(source, min(reading.limit or MOST_ROWS, MOST_ROWS)))
    if not rows:
        raise ConfigError(f"{trace} has no request in the selected part: nothing can be measured")
    return cycle(rows)


def _drawn(rng: random.Random) -> Iterator[TraceRequest]:
    while True:
        yield TraceRequest("", 0.0, rng.randint(*PROMPTS), rng.randint(*ANSWERS))


def _measured(
    load: ClientLoad, server: TargetServer, rows: Sequence[TraceRequest], name: str
) -> MeasuredLoad:
    record = ClientRecord(server.model)
    summary: Summary = seen(load, server, rows, record)
    columns = record.columns
    if (num_failed := len(rows) - summary.num_finished) > MOST_FAILED * len(rows):
        raise ConfigError(f"the server did not answer {num_failed} of {len(rows)} requests: {record.said}")
    if num_failed:
        remark(f"{name}: {num_failed} of {len(rows)} requests failed, and are left out: {record.said}")
    read = (columns.arrival_s, columns.first_token_s, columns.finish_s)
    counts = (columns.num_prompt_tokens, columns.num_output_tokens)
    done = np.array([reason in DONE for reason in columns.reason])
    observed = Observed(*(np.array(column, dtype=np.float64)[done] for column in (*read, *counts)))
    names = {name for name, is_done in zip(columns.request_id, done, strict=True) if is_done}
    answered = [row for row in as_answered(rows, record) if row.request_id in names]
    return MeasuredLoad(name, observed, answered, means_of(summary))
