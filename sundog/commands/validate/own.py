"""`sundog validate --self`: this machine's engine is calibrated, loaded over HTTP, and simulated beside it.

The server is a process of its own, as anybody's. Loads are half and nine tenths of what it gives many clients
in a closed loop. And both worlds, torch and the cost model, run on the virtual clock, where their
batches must be the same.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from actors.config import ConfigError
from actors.core.params.sampling import Sampling
from actors.engine.backend import Backend
from actors.messages import Generate
from runtime.load.prompts import PromptMaker, Units
from runtime.load.server import TargetServer
from runtime.serve import RealModel, torch_backends
from sim.backend import CostBackend, Pace, Paced
from sim.cost.doubt import kernels_of
from sim.cost.work import CostModel, StepWork
from sim.figures.fit_log import logged_works
from sim.figures.metrics import Summary
from sim.oracle import Oracle
from sim.record.client_record import ClientRecord
from sim.record.journal import Journal, decisions
from sim.replay import replay_on
from sim.show.comparison import print_beside
from sim.show.console import console_for
from sim.trace.record import TraceRequest
from sim.workload.distributions import LogNormal, Poisson
from sim.workload.spec import Workload
from sundog.builds.measuring import ClientLoad, Cores, Shares, as_answered, find, predict
from sundog.builds.simulated import Simulated
from sundog.child import E2E_COUNT, E2E_SUM, STEPS, counters, serving
from sundog.commands.calibrate.served import seen
from sundog.ends import remark
from sundog.options.engine import EngineOptions, MeasuringOptions
from sundog.options.simulation import TargetOptions, TermsOptions


@dataclass(frozen=True, slots=True)
class Ledger:
    """Seconds of all steps of a load, and of a request on average.

    `alone_s` and `predicted_s` are what the profile says of the very steps that were served: of the engine
    alone, and with the host's share.
    """

    num_steps: int
    served_s: float
    alone_s: float
    predicted_s: float
    e2e_s: float
    """As clients saw it."""
    in_server_s: float
    """From when the server took the request in to when its last token was computed."""
    cores: Shares | None

    @classmethod
    def of(cls, loaded: "ComparedLoad", log: Sequence[tuple[StepWork, float]], cost: CostModel) -> "Ledger":
        """The sums over the load's steps in the server's `log`, with the seconds from end to end."""
        alone, steps = kernels_of(cost), log[loaded.steps.start : loaded.steps.stop]
        return cls(
            len(steps),
            sum(seconds for _, seconds in steps),
            sum(alone.step_s(work) for work, _ in steps),
            sum(cost.step_s(work) for work, _ in steps),
            0.0 if loaded.measured.e2e_s is None else loaded.measured.e2e_s.mean,
            loaded.in_server_s,
            loaded.cores,
        )

    @property
    def engine(self) -> float:
        """The share of a request's time that the engine's own steps take."""
        return self._in_server * min(1.0, self.alone_s / self.served_s) if self.served_s else 0.0

    @property
    def host(self) -> float:
        """The share that the server adds to steps: scheduling, and cores that its other processes take."""
        return self._in_server - self.engine

    @property
    def way(self) -> float:
        """The share of HTTP, tokenising, detokenising, and the client itself."""
        return 1 - self._in_server

    @property
    def _in_server(self) -> float:
        return min(1.0, self.in_server_s / self.e2e_s) if self.e2e_s else 0.0

    def lines(self) -> Iterator[str]:
        """Say in sentences where the time went."""
        yield (
            f"of a request's {self.e2e_s * 1e3:,.1f} ms, {self.engine:.0%} are the engine's own steps,"
            f" {self.host:.0%} what the server adds to them, {self.way:.0%} the way (HTTP, text, the client)"
        )
        if self.served_s:
            error = self.predicted_s / self.served_s - 1
            yield (
                f"{self.num_steps:,} steps took {self.served_s:.2f} s, of which the profile predicts"
                f" {self.predicted_s:.2f} ({error:+.1%})"
            )
        if self.cores is not None:
            each = self.cores
            yield (
                f"the cores: engine {each.engine:.0%}, server {each.server:.0%}, clients {each.client:.0%},"
                f" others {each.others:.0%}"
            )


def same_batches(real: RealModel, simulated: Simulated, rows: list[TraceRequest]) -> int:
    """Count the batches that both worlds formed. Raises ConfigError with the first that differs."""
    config = replace(simulated.config, decode_runs=False)
    ids = range(real.tokenizer.vocab_size // 4, real.tokenizer.vocab_size // 2)
    prompts = PromptMaker(Units(ids=ids), "worlds")

    def exact(row: TraceRequest) -> Generate:
        sampling = Sampling(temperature=0.0, max_tokens=row.num_output_tokens, ignore_eos=True)
        return Generate(tuple(prompts.of(row)), sampling, row.request_id)  # type: ignore[arg-type]  # ids, no text

    def counted(row: TraceRequest) -> Generate:
        return Generate(row.num_prompt_tokens, Sampling(max_tokens=row.num_output_tokens), row.request_id)

    def played(backend: Backend, is_real: bool) -> Journal:
        journal = Journal()
        replay_on(
            rows,
            config,
            [backend],
            simulated.capacity,
            generate_for=exact if is_real else counted,
            listeners=[journal],
            vocabulary=real.vocabulary if is_real else None,
        )
        return journal

    pace = Pace(simulated.cost, "runner-0")
    torch = played(Paced(torch_backends(real, config)(0), Pace(simulated.cost, "runner-0")), True)
    oracle = Oracle({row.request_id: row.num_output_tokens for row in rows})
    ours = decisions(played(CostBackend(pace, oracle, simulated.capacity), False).outputs)
    theirs = decisions(torch.outputs)
    for index, pair in enumerate(zip(theirs, ours, strict=False)):
        if pair[0] != pair[1]:
            raise ConfigError(f"the worlds differ from batch {index} on: {pair[0]} and {pair[1]}")
    if len(ours) != len(theirs):
        raise ConfigError(f"torch formed {len(theirs)} batches, and the cost model {len(ours)}")
    return len(ours)


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
class ComparedLoad:
    """A load: its share of what the engine can do, what was measured, and what was predicted.

    `others` are predictions whose steps are shorter, and longer, by what the profile is in doubt.
    """

    share: float
    rate_per_s: float
    measured: Summary
    predicted: Summary
    others: tuple[Summary, Summary]
    in_server_s: float
    """Of a request on average."""
    steps: range
    """Of the server's log."""
    cores: Shares | None


def validate_self(model: str | None, cost: str, seconds: float, as_json: bool) -> None:
    """Print predicted beside measured. Raises ConfigError where there is nothing to measure."""
    real = RealModel.open(model)
    if real.embedding is not None:
        raise ConfigError(f"{real.name} makes vectors: what is predicted are models that generate text")
    with TemporaryDirectory(prefix="sundog-") as name:
        scratch = Path(name)
        profile = cost if cost.endswith(".toml") else _calibrated(model or real.name, scratch)
        simulated = Simulated.of(EngineOptions(), TargetOptions(cost=profile))
        num_batches = same_batches(real, simulated, _workload(simulated, 10.0, 60.0)[:NUM_COMPARED])
        loads, log = [], scratch / "steps.jsonl"
        for loaded in _loads(model, simulated, seconds, scratch, log):
            loads.append(loaded)
            if not as_json:
                _print(real.name, loaded)
        steps = logged_works(log)
        ledgers = [Ledger.of(loaded, steps, simulated.cost) for loaded in loads]
    if as_json:
        click.echo(_json(loads, ledgers, num_batches))
        return
    for loaded, ledger in zip(loads, ledgers, strict=True):
        click.echo(f"At {loaded.share:.0%}:")
        for line in ledger.lines():
            click.echo(f"  {line}.")
    click.echo(
        f"On the virtual clock torch and the cost model formed the same {num_batches:,} batches at the same"
        f" instants ({NUM_COMPARED} requests)."
    )


def _calibrated(model: str, folder: Path) -> str:
    from sundog.commands.calibrate.engine import from_engine

    path = folder / "profile.toml"
    from_engine(model, EngineOptions(), MeasuringOptions(seconds=CALIBRATE_S), path)
    return str(path)


def _workload(simulated: Simulated, rate_per_s: float, seconds: float) -> list[TraceRequest]:
    """Requests that come at random, of many lengths that fit into the context."""
    context = simulated.config.scheduler.max_model_len
    prompt, output = min(context // 8, LONGEST_PROMPT), min(context // 12, LONGEST_ANSWER)

    def lengths(mean: int) -> LogNormal:
        return LogNormal(mean=mean, median=round(mean * 0.8), smallest=4, largest=context // 3)

    return Workload(seconds, Poisson(rate_per_s), lengths(prompt), lengths(output)).requests(seed=1)


def _loads(
    model: str | None, simulated: Simulated, seconds: float, scratch: Path, log: Path
) -> Iterator[ComparedLoad]:
    """Serve, find out what the server can do, and put both loads on it; its steps are in `log` then."""
    with serving(model, scratch, "--step-log", str(log)) as url:
        load = ClientLoad(url, timeout_s=TIMEOUT_S)
        server = find(load)
        rows = [row._replace(arrival_s=0.0) for row in _workload(simulated, ENOUGH, 1.0)]
        limit_per_s = _seen(replace(load, num_clients=NUM_CLIENTS), server, rows)[0].requests_per_s
        for share in SHARES:
            rate_per_s = share * limit_per_s
            remark(f"{rate_per_s:,.1f} requests/s for {seconds:g} s")
            rows = _workload(simulated, rate_per_s, seconds)
            before, cores = counters(url), Cores()
            measured, record = _seen(load, server, rows)
            shares, after = cores.shares(), counters(url)
            num_ended = after[E2E_COUNT] - before[E2E_COUNT]
            answered = as_answered(rows, record)
            predicted, *others = (
                predict(load, each, TermsOptions(), answered) for each in (simulated, *simulated.doubted())
            )
            yield ComparedLoad(
                share,
                rate_per_s,
                measured,
                predicted,
                (others[0], others[1]),
                (after[E2E_SUM] - before[E2E_SUM]) / max(num_ended, 1.0),
                range(round(before[STEPS]), round(after[STEPS])),
                shares,
            )


def _seen(load: ClientLoad, server: TargetServer, rows: list[TraceRequest]) -> tuple[Summary, ClientRecord]:
    """What the clients of one load saw."""
    record = ClientRecord(server.model)
    summary = seen(load, server, rows, record)
    if not summary.num_finished:
        raise ConfigError(f"the server answered none of {len(rows):,} requests: {dict(record.said)}")
    return summary, record


def _print(name: str, loaded: ComparedLoad) -> None:
    title = f"{name} at {loaded.share:.0%} of what it can do, {loaded.rate_per_s:,.1f} requests/s"
    print_beside(loaded.measured, loaded.predicted, console_for(), title, loaded.others)
    client = loaded.measured.client
    assert client is not None
    if client.lateness_s is not None:
        late = client.lateness_s
        remark(f"sent late by {late.mean * 1e3:.1f} ms on average, {late.p99 * 1e3:.1f} ms p99")
    for kind, count in client.errors.items():
        remark(f"{count:,} {kind}")
    if loaded.cores is not None and loaded.cores.remark is not None:
        remark(loaded.cores.remark)


def _json(loads: list[ComparedLoad], ledgers: list[Ledger], num_batches: int) -> str:
    rows = [
        {
            "share": loaded.share,
            "rate_per_s": loaded.rate_per_s,
            "measured": json.loads(loaded.measured.to_json()),
            "predicted": json.loads(loaded.predicted.to_json()),
            "predicted_from_to": [json.loads(each.to_json()) for each in loaded.others],
            "shares": {"engine": ledger.engine, "host": ledger.host, "way": ledger.way},
            "steps": asdict(ledger),
        }
        for loaded, ledger in zip(loads, ledgers, strict=True)
    ]
    return json.dumps({"same_batches": num_batches, "loads": rows}, indent=1)
