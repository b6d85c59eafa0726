"""`sundog validate --self`: this machine's engine is calibrated, loaded over HTTP, and simulated beside it.

The server is a process of its own, as anybody's. Loads are half and nine tenths of what it gives many clients
in a closed loop. And both worlds, torch and the cost model, run on the virtual clock, where their
batches must be the same.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from actors.config import ConfigError
from runtime.load.clients import ServerGone
from runtime.load.server import Server
from runtime.serve import RealModel
from sim.figures.metrics import Summary, summarize_client
from sim.record.client_record import ClientRecord
from sim.show.beside import print_beside
from sim.show.console import console_for
from sim.trace.record import TraceRequest
from sim.workload.arrivals import Poisson
from sim.workload.lengths import LogNormal
from sim.workload.workload import Workload
from sundog.child import serving
from sundog.ends import Stopped, remark
from sundog.measuring import Load, as_answered, find, measure, predict
from sundog.options.engine import Engine
from sundog.options.simulation import Target, Terms
from sundog.simulated import Simulated
from sundog.validate.worlds import same_batches

SHARES = (0.5, 0.9)
"""Of what the engine can do."""
NUM_CLIENTS, ENOUGH = 32, 128
"""In the closed loop that warms the server up, and how many requests they have."""
CALIBRATE_S, TIMEOUT_S = 20.0, 300.0
NUM_COMPARED = 24
"""Requests that both worlds run on the virtual clock."""
LONGEST_PROMPT, LONGEST_ANSWER = 256, 96
"""Tokens on average, however long the context."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """One load: its share of what the engine can do, and both summaries."""

    share: float
    rate_per_s: float
    measured: Summary
    predicted: Summary


def validate_self(model: str | None, cost: str, seconds: float, as_json: bool) -> None:
    """Print predicted beside measured. Raises ConfigError where there is nothing to measure."""
    real = RealModel.open(model)
    if real.embedding is not None:
        raise ConfigError(f"{real.name} makes vectors: what is predicted are models that generate text")
    with TemporaryDirectory(prefix="sundog-") as scratch:
        profile = cost if cost.endswith(".toml") else _calibrated(model or real.name, Path(scratch))
        simulated = Simulated.of(Engine(), Target(cost=profile))
        num_batches = same_batches(real, simulated, _workload(simulated, 10.0, 60.0)[:NUM_COMPARED])
        loads = []
        for loaded in _loads(model, simulated, seconds, Path(scratch)):
            loads.append(loaded)
            if not as_json:
                _print(real.name, loaded)
    if as_json:
        click.echo(_json(loads, num_batches))
        return
    click.echo(
        f"On the virtual clock torch and the cost model formed the same {num_batches:,} batches at the same"
        f" instants ({NUM_COMPARED} requests)."
    )


def _calibrated(model: str, folder: Path) -> str:
    from sundog.calibrate.engine import from_engine

    path = folder / "profile.toml"
    from_engine(model, Engine(), "cpu", CALIBRATE_S, True, path)
    return str(path)


def _workload(simulated: Simulated, rate_per_s: float, seconds: float) -> list[TraceRequest]:
    """Requests that come at random, of many lengths that fit into the context."""
    context = simulated.config.scheduler.max_model_len
    prompt, output = min(context // 8, LONGEST_PROMPT), min(context // 12, LONGEST_ANSWER)

    def lengths(mean: int) -> LogNormal:
        return LogNormal(mean=mean, median=round(mean * 0.8), smallest=4, largest=context // 3)

    return Workload(seconds, Poisson(rate_per_s), lengths(prompt), lengths(output)).requests(seed=1)


def _loads(model: str | None, simulated: Simulated, seconds: float, scratch: Path) -> Iterator[Loaded]:
    """Serve, find out what the server can do, and put both loads on it."""
    with serving(model, scratch) as url:
        load = Load(url, timeout_s=TIMEOUT_S)
        server = find(load)
        rows = [row._replace(arrival_s=0.0) for row in _workload(simulated, ENOUGH, 1.0)]
        limit_per_s = _seen(replace(load, num_clients=NUM_CLIENTS), server, rows)[0].requests_per_s
        for share in SHARES:
            rate_per_s = share * limit_per_s
            remark(f"{rate_per_s:,.1f} requests/s for {seconds:g} s")
            rows = _workload(simulated, rate_per_s, seconds)
            measured, record = _seen(load, server, rows)
            predicted = predict(load, simulated, Terms(), as_answered(rows, record))
            yield Loaded(share, rate_per_s, measured, predicted)


def _seen(load: Load, server: Server, rows: list[TraceRequest]) -> tuple[Summary, ClientRecord]:
    """What the clients of one load saw."""
    record = ClientRecord(server.model)
    try:
        measure(load, server, rows, record)
    except ServerGone as gone:
        raise ConfigError(str(gone)) from None
    except KeyboardInterrupt:
        raise Stopped("interrupted while the server was measured") from None
    summary = summarize_client(record)
    if not summary.num_finished:
        raise ConfigError(f"the server answered none of {len(rows):,} requests: {dict(record.said)}")
    return summary, record


def _print(name: str, loaded: Loaded) -> None:
    title = f"{name} at {loaded.share:.0%} of what it can do, {loaded.rate_per_s:,.1f} requests/s"
    print_beside(loaded.measured, loaded.predicted, console_for(), title)
    client = loaded.measured.client
    assert client is not None
    if client.lateness_s is not None:
        late = client.lateness_s
        remark(f"sent late by {late.mean * 1e3:.1f} ms on average, {late.p99 * 1e3:.1f} ms p99")
    for kind, count in client.errors.items():
        remark(f"{count:,} {kind}")


def _json(loads: list[Loaded], num_batches: int) -> str:
    rows = [
        {
            "share": loaded.share,
            "rate_per_s": loaded.rate_per_s,
            "measured": json.loads(loaded.measured.to_json()),
            "predicted": json.loads(loaded.predicted.to_json()),
        }
        for loaded in loads
    ]
    return json.dumps({"same_batches": num_batches, "loads": rows}, indent=1)
