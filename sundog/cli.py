"""The command line, and the only place that knows both worlds.

stdout is results; progress and remarks go to stderr. A mistake in what was asked for is one clear
message and exit code 2. Worlds are imported by the commands that need them, so that simulating
never imports torch.
"""

import difflib
import sys
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from actors.config import ConfigError, EngineConfig
from sundog import fast
from sundog.options import Engine, Simulated, engine_options, or_default, parse_slo

if TYPE_CHECKING:
    from sim.record.message_file import MessageFile
    from sim.trace.record import TraceRequest


def remark(text: str) -> None:
    """A line for people, on stderr."""
    click.echo(text, err=True)


COMMANDS = {
    "calibrate": "sundog.calibrate:calibrate",
    "sweep": "sundog.sweep:sweep",
    "compare": "sundog.compare:compare",
    "perfetto": "sundog.perfetto:perfetto",
    "report": "sundog.report:report",
    "trace": "sundog.trace:trace",
    "validate": "sundog.validate:validate",
    "workload": "sundog.workload:workload",
}
"""Commands with a module of their own, `module:attribute`, imported when one is asked for."""


class Commands(click.Group):
    """The commands of this file and those of `COMMANDS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *COMMANDS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="sundog")
def cli() -> None:
    """LLM serving you can understand, change and predict."""


@cli.command()
@click.option("--model", help="A model folder; with --simulate a known model's name.")
@click.option("--simulate", metavar="GPU", help="Answer at the pace of this GPU, with canned text.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=int, default=8000, show_default=True, help="0 takes a free one.")
@click.option("--api-key", envvar="SUNDOG_API_KEY", help="Required of clients under /v1.")
@click.option("--served-model-name", help="What clients call the model.")
@click.option(
    "--grace",
    "grace_s",
    type=float,
    default=30.0,
    show_default=True,
    help="Seconds that running streams get after SIGTERM.",
)
@click.option("--record", metavar="DIR", help="Write a journal there, for `sundog explain`.")
@click.option("--messages", is_flag=True, help="With --record: every message between actors, too.")
@engine_options
def serve(
    model: str | None,
    simulate: str | None,
    device: str,
    host: str,
    port: int,
    api_key: str | None,
    served_model_name: str | None,
    grace_s: float,
    record: str | None,
    messages: bool,
    **options: Any,
) -> None:
    """Serve a model over HTTP, OpenAI-compatible; without --model, the embedded one."""
    import logging

    import trio

    from actors.api.serve_graph import ServedModel, ServerOptions, serve_graph
    from actors.front.codec import Vocabulary
    from runtime.serve import RealModel
    from sim.record.journal_file import JournalFile
    from sim.record.journal_rows import Header

    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("sundog").setLevel(logging.INFO)
    engine = Engine(**options)
    server = ServerOptions(host, port, api_key, grace_s)
    if simulate is None:
        real = RealModel.open(model, served_model_name)
        name, vocabulary = real.name, real.vocabulary
        config = engine.config(real.max_position_embeddings)
        backends = _torch_backends(real, config, engine, device)
    else:
        from sim.emulate import emulated_backends

        simulated = Simulated.of(engine, or_default(model, "llama-3.1-8b"), simulate, host_overhead=False)
        real = RealModel.open(None)
        name, config = (or_default(served_model_name, or_default(model, "llama-3.1-8b")), simulated.config)
        eos = real.tokenizer.eos_token_ids[0]
        vocabulary = Vocabulary(eos_token_id=eos, size=real.tokenizer.vocab_size)
        backends = emulated_backends(
            simulated.cost, simulated.capacity, config.replicas, real.tokenizer.encode, eos, engine.seed
        )
    served = ServedModel(name, config.scheduler.max_model_len, int(time.time()))

    def ready(url: str) -> None:
        remark(f"Sundog serves {name} at {url}/v1 (stop with Ctrl-C)")

    journal = [] if record is None else [JournalFile(record, Header.of(config))]
    with _message_file(record, messages, "record") as tap:
        trio.run(
            partial(
                serve_graph,
                config,
                backends,
                served,
                real.tokenizer,
                vocabulary,
                server,
                on_ready=ready,
                listeners=journal,
                tap=tap,
            )
        )


def _message_file(
    directory: str | None, wanted: bool, option: str
) -> AbstractContextManager["MessageFile | None"]:
    """The tap that writes every message into the directory, if it is wanted."""
    if not wanted:
        return nullcontext()
    if directory is None:
        raise ConfigError(f"messages needs a folder to write them to: give --{option} DIR")
    from sim.record.message_file import MessageFile

    return MessageFile(directory)


def _torch_backends(real: Any, config: EngineConfig, engine: Engine, device: str) -> Any:
    if engine.tensor_parallel_size != 1:
        raise ConfigError(
            f"tensor_parallel_size is {engine.tensor_parallel_size}: the torch backend runs on one"
            " device; leave it at 1, or use --replicas"
        )
    from runtime.serve import torch_backends

    return torch_backends(
        real,
        config,
        device=device,
        dtype=engine.dtype,
        seed=engine.seed,
        gpu_memory_utilization=engine.gpu_memory_utilization,
    )


def _take_defaults(context: click.Context, _option: click.Parameter, path: Path | None) -> None:
    """Options in a file stand where the command line says nothing."""
    if path is None:
        return
    from sim.record.run_directory import read_config

    known = {str(parameter.name): parameter for parameter in context.command.params}
    given = read_config(path)
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f": did you mean {near[0]}?" if near else ""
            raise ConfigError(f"{path}: {name} is no option of {context.command.name}{hint}")
    context.default_map = {**(context.default_map or {}), **given}


def _kept_options() -> dict[str, object]:
    """What was asked for, but for where results go and what changes none of them."""
    context = click.get_current_context()
    left_out = ("as_json", "out", "messages", "decode_runs", "debug")
    names = [str(option.name) for option in context.command.params if option.expose_value]
    kept = {name: context.params[name] for name in names if name not in left_out}
    kept["slo"] = ",".join(f"{name}={limit_s}" for name, limit_s in kept["slo"].items()) or None
    return kept


@cli.command()
@click.argument("trace")
@click.option("--model", default="llama-3.1-8b", show_default=True, help="A known model or folder.")
@click.option("--gpu", default="h100", show_default=True, help="A known GPU.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
@click.option("--out", "-o", metavar="DIR", help="Write the run there, for report and explain.")
@click.option("--messages", is_flag=True, help="With --out: every message between actors, too.")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=_take_defaults,
    help="Take options from a run's config.toml.",
)
@click.option(
    "--slo",
    callback=parse_slo,
    metavar="NAME=S,…",
    help="Limits for goodput, in seconds: ttft=0.5,tpot=0.05,e2e=10.",
)
@click.option("--gpu-price-per-h", type=float, help="What a GPU costs an hour, in any currency.")
@click.option("--limit", type=click.IntRange(min=1), help="Only the first so many requests.")
@click.option("--tokenizer", help="For traces of texts: a tokenizer.json or a model's folder.")
@click.option(
    "--request-rate", metavar="RATE", help="Other arrivals: Poisson, so many a second, or inf: all at once."
)
@click.option(
    "--max-concurrency", type=click.IntRange(min=1), help="Clients have at most so many requests unfinished."
)
@click.option(
    "--cost",
    default="auto",
    show_default=True,
    help="tables (measured kernels), roofline, auto (tables if any), or a\n calibrated FILE.toml.",
)
@click.option(
    "--host-overhead/--no-host-overhead",
    default=True,
    show_default=True,
    help="Time that the host adds to each step and request.",
)
@click.option(
    "--step-scale",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Let every step take so many times as long.",
)
@click.option(
    "--decode-runs/--no-decode-runs",
    default=True,
    show_default=True,
    help="Let one event stand for many decode steps; same results.",
)
@click.option(
    "--predictor", metavar="NAME", help="Who guesses lengths for the policy: oracle, class-mean, noisy."
)
@engine_options
def replay(
    trace: str,
    model: str,
    gpu: str,
    as_json: bool,
    out: str | None,
    messages: bool,
    slo: dict[str, float],
    gpu_price_per_h: float | None,
    limit: int | None,
    tokenizer: str | None,
    request_rate: str | None,
    max_concurrency: int | None,
    cost: str,
    host_overhead: bool,
    step_scale: float,
    decode_runs: bool,
    predictor: str | None,
    **options: Any,
) -> None:
    """Replay TRACE on simulated hardware and print what its requests would have seen."""
    from itertools import islice

    from sim.cost.scaled import Scaled
    from sim.cost.tables.model import outside_measured
    from sim.figures.metrics import summarize
    from sim.figures.saturation import KNEE
    from sim.predictor import find_predictor
    from sim.record.journal_file import JournalFile
    from sim.record.journal_rows import Header
    from sim.replay import replay as replay_trace
    from sim.show.progress import progress
    from sim.trace.read import read_trace
    from sim.workload.retime import parse_rate, retimed

    simulated = Simulated.of(Engine(**options), model, gpu, host_overhead, cost)
    guess = None if predictor is None else find_predictor(predictor, options["seed"])
    config = replace(simulated.config, decode_runs=decode_runs)
    source = read_trace(trace, tokenizer)
    rows: Iterable[TraceRequest] = islice(source, limit)
    if request_rate is not None:
        rows = retimed(rows, parse_rate(request_rate), options["seed"])
    journal = [] if out is None else [JournalFile(out, Header.of(config, simulated.capacity.num_blocks))]
    writer = None
    if out is not None:
        from sim.record.run_writer import RunWriter

        writer = RunWriter(out, config.replicas)
    step_cost = simulated.cost if step_scale == 1 else Scaled(simulated.cost, step_scale)
    with (
        _message_file(out, messages, "out") as tap,
        progress(lambda: sum(1 for _ in islice(source, limit))) as on_progress,
    ):
        recorder = replay_trace(
            rows,
            config,
            step_cost,
            simulated.capacity,
            predictor=guess,
            front_end_s=simulated.front_end_s,
            max_concurrency=max_concurrency,
            sink=writer,
            on_progress=on_progress,
            listeners=journal,
            tap=tap,
        )
    terms = simulated.terms(slo, gpu_price_per_h)
    for operator, factor in outside_measured(simulated.cost).items():
        remark(f"{operator}: asked for {factor:.1f} times more (or less) than was measured")
    summary = summarize(recorder, terms, writer and writer.close())
    if out is not None:
        from sim.record.run_directory import write_run

        write_run(out, recorder, summary, _kept_options())
    if summary.saturation is not None and summary.saturation >= KNEE:
        remark(
            f"{summary.saturation:.0%} saturated: a small error in step time moves waiting a lot"
            " here; see how far with --step-scale 0.97 and 1.03"
        )
    if as_json:
        click.echo(summary.to_json())
    else:
        from sim.show.summary_table import print_summary

        replicas = f", {simulated.config.replicas} replicas" if simulated.config.replicas > 1 else ""
        print_summary(summary, f"{Path(trace).name} on {model}, {gpu}{replicas}")


@cli.command()
@click.argument("trace", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), required=True)
@click.option(
    "--engine-version",
    type=click.Choice(["0.32", "0.33"]),
    default="0.33",
    show_default=True,
    help="Whose decisions, where vLLM's versions differ.",
)
@click.option(
    "--lockstep/--no-lockstep",
    default=True,
    show_default=True,
    help="Touch only what changes; the decisions are the same.",
)
def schedule(trace: Path, output: Path, engine_version: str, lockstep: bool) -> None:
    """Log every decision of the scheduler on TRACE, in the golden files' format."""
    from sim.schedule.decision_log import log_trace

    log_trace(trace, output, engine_version, lockstep)


@cli.command()
@click.argument("record", type=click.Path(path_type=Path))
@click.option("--request", "request_id", metavar="ID", help="The life of this request.")
@click.option(
    "--top", type=click.IntRange(min=0), default=10, show_default=True, help="How many of the longest waits."
)
@click.option("--all", "every", is_flag=True, help="Each change of cause of a long wait.")
@click.option("--json", "as_json", is_flag=True, help="Print the same as JSON.")
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    help="The trace of a log of decisions, if it is not beside the log.",
)
def explain(
    record: Path, request_id: str | None, top: int, every: bool, as_json: bool, trace: Path | None
) -> None:
    """Say why requests waited, and who was preempted for whom, in RECORD.

    RECORD is a directory that replay --out or serve --record wrote, or a log of decisions.
    """
    from sundog.explain import explain as explain_record

    explain_record(record, request_id, top=top, every=every, as_json=as_json, trace=trace)


@cli.command()
@click.option("--seed", type=int, default=0, show_default=True)
def demo(seed: int) -> None:
    """Serve the embedded model, ask it, and see the simulation of the same requests agree."""
    from sundog.demo import run_demo

    sys.exit(run_demo(seed))


def sole_cause(error: BaseException) -> BaseException:
    """What went wrong, out of the exception groups of the nurseries it crossed."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def main() -> None:
    """Run the command line; a mistake of the user's is one message and exit code 2."""
    if changed := fast.stale():
        remark(f"sundog: {', '.join(changed)} changed: `make fast` again, or `make plain`")
        sys.exit(2)
    try:
        cli(standalone_mode=True)
    except (ConfigError, BaseExceptionGroup) as error:
        cause = sole_cause(error)
        if not isinstance(cause, ConfigError):
            raise
        remark(f"sundog: {cause}")
        sys.exit(2)


if __name__ == "__main__":
    main()
