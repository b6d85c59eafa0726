"""Measurement of the time that a server on this machine adds to its engine's steps.

`sundog serve` runs in child processes, clients in this one. Steps are logged from end to end: their time
beyond the engine's own is the host's share, and the rest of TTFT is the latency to the engine and back. A
further load, which is not fitted, then tests the predictions.
"""

import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from sundog.actors.config import ConfigError
from sundog.builds.measuring import LOADED, ClientLoad, Cores, as_answered, find, measure
from sundog.child import STEPS, counters, serving
from sundog.ends import Stopped
from sundog.options.engine import EngineOptions, MeasuringOptions
from sundog.options.row import spelled
from sundog.runtime.load.clients import ServerGone
from sundog.runtime.load.server import TargetServer
from sundog.sim.cost.profile import HostShare
from sundog.sim.cost.work import CostModel
from sundog.sim.figures.fit_log import fit_host, logged_works
from sundog.sim.figures.metrics import Summary, summarize_client
from sundog.sim.record.client_record import ClientRecord
from sundog.sim.trace.record import TraceRequest

CLIENTS = (1, 4, 16, 32)
SHARES, TRIAL = (0.25, 0.65), 0.5
"""Loads of random requests, as shares of the throughput of many clients in a closed loop."""
CLOSED_S, OPEN_S, WARM_S = 2.5, 7.0, 1.5
"""Seconds for which new requests arrive."""
PATIENCE_S = 300.0
LONGEST_PROMPT, LONGEST_ANSWER = 384, 128
SEED = 12
TRIES = 3
"""Tries of a load, if other processes used the cores meanwhile; the quietest one counts."""


@dataclass(frozen=True, slots=True)
class LoadStage:
    """Load on the server: `num_clients` in a closed loop, None for random arrivals."""

    num_clients: int | None
    rows: Sequence[TraceRequest]
    """Requests, with the lengths that the server counted."""
    measured: Summary
    steps: range
    """Steps of the load in the server's log."""
    others: float
    """Share of the cores that other processes used."""

    @property
    def name(self) -> str:
        if self.num_clients is None:
            return f"{self.measured.requests_per_s:.1f} a second"
        return f"{self.num_clients} clients"


@dataclass(frozen=True, slots=True)
class ServedLoads:
    """Loads on a server, and the host's share fitted to them."""

    host: HostShare
    fitted: tuple[LoadStage, ...]
    trial: LoadStage


def measure_host(
    source: str, measuring: MeasuringOptions, engine: EngineOptions, cost: CostModel, limits: tuple[int, int]
) -> ServedLoads:
    """Return the host's share of steps; `limits` are the most concurrent requests, and the longest
    context.
    """
    most, context = limits
    lengths = max(4, min(LONGEST_PROMPT, context // 4)), max(4, min(LONGEST_ANSWER, context // 6))
    with TemporaryDirectory(prefix="sundog-") as name:
        log = Path(name) / "steps.jsonl"
        options = [*spelled(engine), "--device", measuring.device, "--step-log", str(log)]
        if measuring.num_threads is not None:
            options += ["--num-threads", str(measuring.num_threads)]
        with serving(source, Path(name), *options) as url:
            clients = LoadClients(url, lengths)
            clients.once(min(CLIENTS[-1], most), WARM_S)
            stages = [clients.stage(each, CLOSED_S) for each in sorted({min(n, most) for n in CLIENTS})]
            most_per_s = max(stage.measured.requests_per_s for stage in stages)
            stages += [clients.stage(None, OPEN_S, share * most_per_s) for share in SHARES]
            trial = clients.stage(None, OPEN_S, TRIAL * most_per_s)
        steps = logged_works(log)
    fitted = [step for stage in stages for step in steps[stage.steps.start : stage.steps.stop]]
    return ServedLoads(fit_host(fitted, cost), tuple(stages), trial)


class LoadClients:
    """Clients that put one load after another on a server."""

    def __init__(self, url: str, lengths: tuple[int, int]) -> None:
        self._url, self._lengths = url, lengths
        self._load = ClientLoad(url, timeout_s=PATIENCE_S)
        self._server: TargetServer = find(self._load)
        self._rng = random.Random(SEED)
        self._num_rows = 0

    def stage(self, num_clients: int | None, seconds: float, rate_per_s: float = 0.0) -> LoadStage:
        """Run a load of `num_clients`, or of random requests, for some seconds; return the least disturbed of
        several tries.
        """
        tries = list[LoadStage]()
        while len(tries) < TRIES and (not tries or tries[-1].others > LOADED):
            tries.append(self.once(num_clients, seconds, rate_per_s))
        return min(tries, key=lambda each: each.others)

    def once(self, num_clients: int | None, seconds: float, rate_per_s: float = 0.0) -> LoadStage:
        """Put a load on the server once, without regard to other processes; raises ConfigError if it
        fails.
        """
        asked: list[TraceRequest] = []
        source = (
            self._open(rate_per_s, seconds) if num_clients is None else self._closed(seconds, num_clients)
        )

        def remembered() -> Iterator[TraceRequest]:
            for row in source:
                asked.append(row)
                yield row

        record, before, cores = ClientRecord(self._server.model), counters(self._url), Cores()
        measured = seen(replace(self._load, num_clients=num_clients), self._server, remembered(), record)
        if measured.num_finished < len(asked):
            raise ConfigError(f"the server did not answer all of {len(asked)} requests: {dict(record.said)}")
        others = cores.others()
        steps = range(round(before[STEPS]), round(counters(self._url)[STEPS]))
        return LoadStage(
            num_clients, as_answered(asked, record), measured=measured, steps=steps, others=others
        )

    def _closed(self, seconds: float, least: int) -> Iterator[TraceRequest]:
        """Yield requests for as long as the measurement lasts, at least one per client."""
        end_s, first = time.monotonic() + seconds, self._num_rows
        while time.monotonic() < end_s or self._num_rows < first + least:
            yield self._row(0.0)

    def _open(self, rate_per_s: float, seconds: float) -> Iterator[TraceRequest]:
        arrival_s = 0.0
        while arrival_s <= seconds:
            yield self._row(arrival_s)
            arrival_s += self._rng.expovariate(rate_per_s)

    def _row(self, arrival_s: float) -> TraceRequest:
        prompt, answer = (self._rng.randint(2, longest) for longest in self._lengths)
        self._num_rows += 1
        return TraceRequest(f"calibrate-{self._num_rows}", arrival_s, prompt, answer)


def seen(
    load: ClientLoad, server: TargetServer, requests: Iterable[TraceRequest], record: ClientRecord
) -> Summary:
    """Run a load, and return its clients' figures. ConfigError if the server is gone."""
    try:
        measure(load, server, requests, record)
    except ServerGone as gone:
        raise ConfigError(str(gone)) from None
    except KeyboardInterrupt:
        raise Stopped("interrupted while the server was measured") from None
    return summarize_client(record)
