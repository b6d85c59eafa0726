"""Loads that `sundog calibrate URL` puts on a server: each rate in short repetitions, one rate after another.

A machine that others use is faster in one minute than in the next. Repetitions expose all rates to this
alike, and the differences between those of one rate limit the accuracy of any prediction.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle, islice

import numpy as np

from sundog.actors.config import ConfigError
from sundog.builds.measuring import ClientLoad, as_answered, find
from sundog.calibration.loads import MeasuredLoad, means_of
from sundog.calibration.served import seen
from sundog.ends import remark
from sundog.options.clients import ENDPOINTS, ServerLoads, parse_rates
from sundog.options.row import refuse
from sundog.options.simulation import ReadingOptions
from sundog.runtime.load.server import TargetServer
from sundog.sim.figures.fit_requests import Observed
from sundog.sim.figures.metrics import Summary
from sundog.sim.record.client_record import ClientRecord
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


def measure_loads(
    url: str, trace: str | None, asked: ServerLoads, reading: ReadingOptions, seed: int
) -> list[MeasuredLoad]:
    """Put all rates on the server, one after another, in repetitions. ConfigError if a request fails."""
    if asked.request_rate is None:
        raise ConfigError(
            f"--request-rate is missing: name the loads to put on {url}: give three, as in 2,6,10"
        )
    rates = parse_rates(asked.request_rate)
    # The first load warms the server up, and does not count.
    order = [max(rates), *rates * ROUNDS]
    seconds, found = asked.load_seconds / len(order), list[MeasuredLoad]()
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
    with runs_progress("loads") as on_progress:
        for number, rate in enumerate(order):
            num = max(FEWEST, round(rate * seconds))
            block = [row._replace(request_id=str(index)) for index, row in enumerate(islice(rows, num))]
            found.append(_measured(load, server, list(retimed(block, rate, seed + number)), f"{rate:g}/s"))
            on_progress(number + 1, len(order))
    return found[1:]


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
