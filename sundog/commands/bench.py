"""`sundog bench`: a trace or a workload on a running server of any make."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sundog.actors.config import ConfigError
from sundog.ends import Stopped, remark
from sundog.options.clients import ENDPOINTS, ClientOptions
from sundog.options.config_file import config_option
from sundog.options.engine import EngineOptions
from sundog.options.row import AnyText, Parsed, Real, Switch, Whole, option, refuse
from sundog.options.row import rows as table_rows
from sundog.options.simulation import CLIENTS, CostOptions, ReadingOptions, TermsOptions, parse_rate
from sundog.options.takes import command, takes
from sundog.outputs import client_output

if TYPE_CHECKING:
    from sundog.builds.measuring import ClientLoad
    from sundog.runtime.load.server import TargetServer
    from sundog.sim.figures.metrics import Summary
    from sundog.sim.record.client_record import ClientRecord
    from sundog.sim.trace.record import TraceRequest

LATE_S, BUSY = 0.01, 0.8
"""Lateness in seconds of the 99th percentile, and core share at the busiest time, from which a client gets a
warning.
"""
MOST_PROCESSES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions(ClientOptions):
    """Options of clients: arrivals of requests, and results to keep."""

    as_json: bool = option(False, Switch(pair=False), "Print the results as JSON.", flag="--json", kept=False)
    out: str | None = option(
        None,
        AnyText("DIR"),
        "Folder to write the run to, for report, compare and replay.",
        names=("-o",),
        kept=False,
    )
    rate: str | None = option(
        None,
        Parsed(parse_rate, "RATE"),
        "Other arrivals: a Poisson process, or inf for all at once.",
        names=("--request-rate",),
        section=CLIENTS,
    )
    scale: float = option(
        1.0, Real(0, 1e6, above=True), "Let requests arrive this many times as fast.", section=CLIENTS
    )
    clients: int | None = option(
        None,
        Whole(1, 2**20),
        "Closed loop: this many clients, each with one request at a time.",
        names=("--max-concurrency",),
        section=CLIENTS,
    )
    timeout: float | None = option(
        None,
        Real(0, 1e9, above=True),
        "Seconds after which clients give up a request.",
        names=("--client-timeout",),
        section=CLIENTS,
    )
    processes: int = option(
        1,
        Whole(1, MOST_PROCESSES),
        "Processes that the clients share; for loads of more than some 4,000 tokens a second.",
        section=CLIENTS,
    )
    simulate: str | None = option(
        None,
        AnyText("GPU", is_path=True),
        "Predict the same load for this GPU, or for the profile.toml of `sundog calibrate`.",
        section="Prediction",
    )
    shape: str | None = option(
        None,
        AnyText("MODEL", is_path=True),
        "Model to simulate, by name or folder; the server's name for it if not given.",
        section="Prediction",
    )


@command
@config_option
@takes(BenchOptions, ReadingOptions, TermsOptions, CostOptions, EngineOptions)
@click.argument("url")
@click.argument("trace", metavar="TRACE|WORKLOAD.toml")
def bench(
    asked: BenchOptions,
    reading: ReadingOptions,
    terms: TermsOptions,
    costs: CostOptions,
    engine: EngineOptions,
    url: str,
    trace: str,
) -> None:
    """Send load to a server, and measure its clients' latencies.

    URL is any server with OpenAI's API. Each request is sent at its time in TRACE, even if earlier ones are
    unanswered, and its latency counts from that time. With --simulate, the options of the engine describe a
    simulation to compare with.
    """
    from sundog.builds.load_processes import shares_of
    from sundog.builds.measuring import ClientLoad, as_answered, find, predict
    from sundog.builds.simulated import deploy
    from sundog.options.measured import profile_of, simulated_target
    from sundog.sim.record.client_record import ClientRecord
    from sundog.sim.show.comparison import print_beside
    from sundog.sim.show.console import console_for
    from sundog.sim.show.summary_table import print_summary
    from sundog.sim.show.words import steps_within

    if asked.simulate is None:
        refuse((engine, costs), "applies only with --simulate GPU: add that, or leave it out", but=("seed",))
    rows = _rows(asked, reading, engine.seed, trace)
    load = ClientLoad(
        url,
        asked.model,
        endpoint=ENDPOINTS[asked.endpoint],
        api_key=asked.api_key,
        num_clients=asked.clients,
        timeout_s=asked.timeout,
        num_processes=asked.processes,
    )
    shares_of(rows, load.num_processes, load.num_clients)
    server = find(load)
    simulated = None
    if asked.simulate is not None:
        target = simulated_target(asked.shape, asked.simulate, costs)
        if asked.shape is None and profile_of(target) is None:
            target = replace(target, model=server.model)
        simulated = deploy(engine, target)
    for text in (*server.remarks, *(simulated.remarks if simulated else ())):
        remark(text)
    record = ClientRecord(server.model)
    summary = _measured(asked, terms, load, server, rows, record)
    _warn(summary)
    answered = as_answered(rows, record)
    predicted = None if simulated is None else predict(load, simulated, terms, answered)
    if asked.as_json:
        click.echo(_json(summary, predicted))
        return
    print_summary(summary, f"{Path(trace).name} on {server.model} at {url}")
    if simulated is not None and predicted is not None:
        doubt = steps_within(simulated.doubt)
        title = f"beside {simulated.model}, {simulated.machine}, simulated; {doubt}"
        others = [predict(load, each, terms, answered) for each in simulated.doubted()]
        print_beside(summary, predicted, console_for(), title, others)


def _rows(asked: BenchOptions, reading: ReadingOptions, seed: int, trace: str) -> "list[TraceRequest]":
    from sundog.sim.workload.read import read_spec
    from sundog.sim.workload.resample import retimed

    arrivals = {
        "--rate": asked.rate is not None,
        "--clients": asked.clients is not None,
        "--scale": asked.scale != 1,
    }
    if len(given := [flag for flag, is_given in arrivals.items() if is_given]) > 1:
        raise ConfigError(f"{given[0]} cannot be combined with {given[1]}: leave one out")
    if trace.endswith(".toml"):
        refuse((reading,), f"is for a trace, and {trace} describes a workload: leave it out", but=("limit",))
        found: Iterable[TraceRequest] = read_spec(trace).requests(seed)
    else:
        source = reading.trace(trace)
        for text in source.remarks:
            remark(text)
        found = source
    rows = islice(found, reading.limit)
    if asked.rate is not None:
        return list(retimed(rows, parse_rate(asked.rate), seed)) or _nothing(trace)
    speed = math.inf if asked.clients is not None else asked.scale
    return [row._replace(arrival_s=row.arrival_s / speed) for row in rows] or _nothing(trace)


def _nothing(trace: str) -> "list[TraceRequest]":
    raise ConfigError(f"{trace} has no request: nothing can be measured")


def _measured(
    asked: BenchOptions,
    terms: TermsOptions,
    load: "ClientLoad",
    server: "TargetServer",
    rows: "list[TraceRequest]",
    record: "ClientRecord",
) -> "Summary":
    from sundog.builds.load_processes import LoadBroken
    from sundog.builds.measuring import measure
    from sundog.runtime.load.clients import ServerGone
    from sundog.sim.figures.metrics import summarize_client
    from sundog.sim.figures.totals import RunTerms
    from sundog.sim.show.progress import progress

    level = terms.service_level
    limits = level.limits_s.get
    held_against = RunTerms(limits("ttft"), limits("tpot"), limits("e2e"), objectives=level.objectives)
    of_engines = {row.name for record in (EngineOptions, CostOptions) for row in table_rows(record)}
    unused = () if asked.simulate is not None else of_engines - {"seed"}
    try:
        with client_output(asked.out, unused) as output, progress(lambda: len(rows)) as on_progress:
            output.keep_trace(rows)
            is_whole = False
            try:
                measure(load, server, rows, record, on_progress)
                is_whole = True
            finally:
                record.spill(output.sink)
                output.rows()
                summary = summarize_client(record, held_against)
                if not is_whole:
                    output.finish_part(summary.to_json(), record.until_s)
            output.finish(summary.to_json())
    except (ServerGone, LoadBroken) as error:
        raise ConfigError(str(error)) from None
    except KeyboardInterrupt:
        done = sum(reason is not None for reason in record.columns.reason)
        raise Stopped(f"interrupted after {done:,} of {len(rows):,} requests") from None
    return summary


def _warn(summary: "Summary") -> None:
    if (client := summary.client) is None:
        return
    late_s = 0.0 if client.lateness_s is None else client.lateness_s.p99
    busy = client.cpu_most or 0.0
    if late_s > LATE_S or busy > BUSY:
        way_out = (
            f"give more than --processes {client.num_processes}, or less load"
            if busy > BUSY
            else "other programs use its cores: measure on a quieter machine, or give less load"
        )
        remark(
            f"the client may have limited this measurement: it sent requests up to {late_s * 1e3:,.0f} ms "
            "late (p99),"
            f" which is part of TTFT and E2E, and a process of it had up to {busy:.0%} of a core: {way_out}"
        )


def _json(measured: "Summary", predicted: "Summary | None") -> str:
    if predicted is None:
        return measured.to_json()
    both = {"measured": json.loads(measured.to_json()), "predicted": json.loads(predicted.to_json())}
    return json.dumps(both, indent=2, allow_nan=False)
