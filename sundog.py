"""The command line, and the only place that knows both worlds.

stdout is results; progress and remarks go to stderr. A mistake in what was asked for is one clear
message and exit code 2. Worlds are imported by the commands that need them, so that simulating
never imports torch.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from actors.config import ConfigError, EngineConfig, SchedulerConfig
from actors.core.config import VICTIMS
from actors.core.policies import POLICIES, find_policy

if TYPE_CHECKING:
    from actors.messages import Capacity
    from sim.cost.work import CostModel
    from sim.target import Target

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

DEFAULT_LIMITS = (2048, 256)
"""vLLM's (max_num_batched_tokens, max_num_seqs) where nothing is known of the hardware."""

ENGINE_OPTIONS = [
    click.option("--max-num-seqs", type=int, help="Most requests that run at once."),
    click.option("--max-num-batched-tokens", type=int, help="Token budget of a step."),
    click.option("--max-model-len", type=int, help="Longest context; by default the model's."),
    click.option("--block-size", type=int, default=16, show_default=True, help="Tokens per block."),
    click.option(
        "--num-gpu-blocks", "--num-gpu-blocks-override", type=int,
        help="KV blocks, the null block included; what fits into memory if not given.",
    ),
    click.option("--gpu-memory-utilization", type=float, help="Share of memory that may be used."),
    click.option("--tensor-parallel-size", "-tp", type=int, default=1, show_default=True),
    click.option("--dtype", default="auto", show_default=True, help="Of weights and activations."),
    click.option(
        "--policy", "--scheduling-policy", default="fcfs", show_default=True,
        help=f"Scheduling policy: {', '.join(POLICIES)}, or FILE.py:NAME; perhaps :KEY=NUMBER,….",
    ),
    click.option("--preempt-for-priority", is_flag=True,
                 help="Let a waiting request take the place of less urgent running ones."),
    click.option("--max-overtakes", type=int, default=0, show_default=True,
                 help="How often others may pass a request for which there are no KV blocks."),
    click.option("--victim", type=click.Choice(VICTIMS), default="policy", show_default=True,
                 help="Who is preempted when KV blocks run out."),
    click.option("--refuse-never-fit", is_flag=True,
                 help="Allow a KV cache below the context; refuse what could outgrow it."),
    click.option("--replicas", type=int, default=1, show_default=True, help="Equal engines."),
    click.option(
        "--router", default="round-robin", show_default=True,
        help="round-robin or least-requests: which replica a request goes to.",
    ),
    click.option("--enable-prefix-caching/--no-enable-prefix-caching", default=True),
    click.option("--enable-chunked-prefill/--no-enable-chunked-prefill", default=True),
    click.option("--async-scheduling/--no-async-scheduling", default=False, show_default=True),
    click.option("--long-prefill-token-threshold", type=int, default=0, show_default=True),
    click.option("--watermark", type=float, default=0.0, show_default=True),
    click.option("--prefix-caching-hash-algo", default="sha256", show_default=True),
    click.option("--max-waiting", type=int, help="Refuse requests beyond so many unfinished."),
    click.option("--seed", type=int, default=0, show_default=True),
]  # fmt: skip


def engine_options(command: F) -> F:
    """The options that serving and simulating share, under vLLM's names."""
    for option in reversed(ENGINE_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class Engine:
    """The values of the shared options."""

    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    max_model_len: int | None
    block_size: int
    num_gpu_blocks: int | None
    gpu_memory_utilization: float | None
    tensor_parallel_size: int
    dtype: str
    policy: str
    preempt_for_priority: bool
    max_overtakes: int
    victim: Literal["policy", "least-recompute"]
    refuse_never_fit: bool
    replicas: int
    router: str
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    async_scheduling: bool
    long_prefill_token_threshold: int
    watermark: float
    prefix_caching_hash_algo: str
    max_waiting: int | None
    seed: int

    def config(self, context: int | None, limits: tuple[int, int] = DEFAULT_LIMITS) -> EngineConfig:
        """The deployment, for a model whose own context is `context` tokens."""
        if self.max_model_len is not None and context is not None and self.max_model_len > context:
            raise ConfigError(
                f"max_model_len is {self.max_model_len}, but the model's context is {context}:"
                " lower --max-model-len"
            )
        max_model_len = self.max_model_len or context or 4096
        scheduler = SchedulerConfig(
            max_num_seqs=_or(self.max_num_seqs, limits[1]),
            max_num_batched_tokens=_or(self.max_num_batched_tokens, limits[0]),
            max_model_len=max_model_len,
            num_gpu_blocks=_or(self.num_gpu_blocks, 2),
            block_size=self.block_size,
            enable_prefix_caching=self.enable_prefix_caching,
            enable_chunked_prefill=self.enable_chunked_prefill,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            async_scheduling=self.async_scheduling,
            watermark=self.watermark,
            preempt_for_priority=self.preempt_for_priority,
            max_overtakes=self.max_overtakes,
            victim=self.victim,
        )
        return EngineConfig(
            scheduler=scheduler,
            policy=find_policy(self.policy),
            num_gpu_blocks=self.num_gpu_blocks,
            replicas=self.replicas,
            router=self.router,
            max_waiting=self.max_waiting,
            refuse_never_fit=self.refuse_never_fit,
            prefix_caching_hash_algo=self.prefix_caching_hash_algo,
        )

    def target(self, model: str, gpu: str) -> "Target":
        """The simulated hardware and model."""
        from sim.hardware.gpu import load_gpu
        from sim.hardware.model import dtype_name, load_model
        from sim.target import Target

        return Target(
            load_model(model),
            load_gpu(gpu),
            tensor_parallel_size=self.tensor_parallel_size,
            dtype=None if self.dtype == "auto" else dtype_name(self.dtype),
            gpu_memory_utilization=_or(self.gpu_memory_utilization, 0.92),
        )


@dataclass(frozen=True, slots=True)
class Simulated:
    """A deployment whose GPUs are not there."""

    config: EngineConfig
    cost: "CostModel"
    capacity: "Capacity"

    @classmethod
    def of(cls, engine: Engine, model: str, gpu: str, host_overhead: bool) -> "Simulated":
        from sim.cost.overhead import NO_OVERHEAD, HostOverhead

        target = engine.target(model, gpu)
        config = engine.config(target.model.max_positions, target.default_limits)
        capacity = target.capacity(
            config.scheduler.block_size,
            config.scheduler.max_num_batched_tokens,
            config.scheduler.max_num_seqs,
            engine.num_gpu_blocks,
        )
        config.with_blocks(capacity.num_blocks)
        return cls(config, target.cost(HostOverhead() if host_overhead else NO_OVERHEAD), capacity)


def _or(value: T | None, default: T) -> T:
    return default if value is None else value


def remark(text: str) -> None:
    """A line for people, on stderr."""
    click.echo(text, err=True)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
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
@click.option("--grace", "grace_s", type=float, default=30.0, show_default=True,
              help="Seconds that running streams get after SIGTERM.")  # fmt: skip
@click.option("--record", metavar="DIR", help="Write a journal there, for `sundog explain`.")
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
    **options: Any,
) -> None:
    """Serve a model over HTTP, OpenAI-compatible; without --model, the embedded one."""
    import trio

    from actors.api.serve import Door, ServedModel
    from actors.api.serve import serve as serve_graph
    from actors.async_llm import ModelFacts
    from runtime.serve import RealModel
    from sim.journal_file import Header, JournalFile

    engine = Engine(**options)
    door = Door(host, port, api_key, grace_s)
    if simulate is None:
        real = RealModel.open(model, served_model_name)
        name, facts = real.name, real.facts
        config = engine.config(real.max_position_embeddings)
        backends = _torch_backends(real, config, engine, device)
    else:
        from sim.emulate import emulated_backends

        simulated = Simulated.of(engine, _or(model, "llama-3.1-8b"), simulate, host_overhead=False)
        real = RealModel.open(None)
        name, config = _or(served_model_name, _or(model, "llama-3.1-8b")), simulated.config
        eos = real.tokenizer.eos_token_ids[0]
        facts = ModelFacts(eos_token_id=eos, vocab_size=real.tokenizer.vocab_size)
        backends = emulated_backends(
            simulated.cost, simulated.capacity, config.replicas, real.tokenizer.encode, eos,
            engine.seed,
        )  # fmt: skip
    served = ServedModel(name, config.scheduler.max_model_len, int(time.time()), facts.vocab_size)

    def ready(url: str) -> None:
        remark(f"Sundog serves {name} at {url}/v1 (stop with Ctrl-C)")

    journal = [] if record is None else [JournalFile(record, Header.of(config))]
    trio.run(
        partial(
            serve_graph, config, backends, served, real.tokenizer, facts, door,
            on_ready=ready, listeners=journal,
        )
    )  # fmt: skip


def _torch_backends(real: Any, config: EngineConfig, engine: Engine, device: str) -> Any:
    if engine.tensor_parallel_size != 1:
        raise ConfigError(
            f"tensor_parallel_size is {engine.tensor_parallel_size}: the torch backend runs on one"
            " device; leave it at 1, or use --replicas"
        )
    try:
        from runtime.serve import torch_backends

        return torch_backends(
            real, config, device=device, dtype=engine.dtype, seed=engine.seed,
            gpu_memory_utilization=engine.gpu_memory_utilization,
        )  # fmt: skip
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"serving needs {error.name}: install it with `pip install 'sundog[engine]'`"
        ) from error


@cli.command()
@click.argument("trace")
@click.option("--model", default="llama-3.1-8b", show_default=True, help="A known model or folder.")
@click.option("--gpu", default="h100", show_default=True, help="A known GPU.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
@click.option("--out", metavar="DIR", help="Write there: a row per request, summary, journal.")
@click.option("--limit", type=click.IntRange(min=1), help="Only the first so many requests.")
@click.option("--host-overhead/--no-host-overhead", default=True, show_default=True,
              help="Time that the host adds to each step.")  # fmt: skip
@click.option("--decode-runs/--no-decode-runs", default=True, show_default=True,
              help="Let one event stand for many decode steps; same results.")  # fmt: skip
@click.option("--predictor", metavar="NAME",
              help="Who guesses lengths for the policy: oracle, class-mean, noisy.")  # fmt: skip
@engine_options
def replay(
    trace: str,
    model: str,
    gpu: str,
    as_json: bool,
    out: str | None,
    limit: int | None,
    host_overhead: bool,
    decode_runs: bool,
    predictor: str | None,
    **options: Any,
) -> None:
    """Replay TRACE on simulated hardware and print what its requests would have seen."""
    from itertools import islice

    from sim.journal_file import Header, JournalFile
    from sim.metrics import summarize
    from sim.predictor import find_predictor
    from sim.progress import progress
    from sim.replay import replay as replay_trace
    from sim.report import print_summary, write_requests
    from sim.trace.read import read_trace

    simulated = Simulated.of(Engine(**options), model, gpu, host_overhead)
    guess = None if predictor is None else find_predictor(predictor, options["seed"])
    config = replace(simulated.config, decode_runs=decode_runs)
    rows = islice(read_trace(trace), limit)
    journal = (
        [] if out is None else [JournalFile(out, Header.of(config, simulated.capacity.num_blocks))]
    )
    with progress(sum(1 for _ in islice(read_trace(trace), limit))) as on_progress:
        recorder = replay_trace(
            rows, config, simulated.cost, simulated.capacity,
            predictor=guess, on_progress=on_progress, listeners=journal,
        )  # fmt: skip
    summary = summarize(recorder)
    if out is not None:
        write_requests(out, recorder, summary)
    if as_json:
        click.echo(summary.to_json())
    else:
        replicas = (
            f", {simulated.config.replicas} replicas" if simulated.config.replicas > 1 else ""
        )
        print_summary(summary, f"{Path(trace).name} on {model}, {gpu}{replicas}")


@cli.command()
@click.argument("trace", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), required=True)
@click.option("--engine-version", type=click.Choice(["0.32", "0.33"]), default="0.33",
              show_default=True, help="Whose decisions, where vLLM's versions differ.")  # fmt: skip
@click.option("--lockstep/--no-lockstep", default=True, show_default=True,
              help="Touch only what changes; the decisions are the same.")  # fmt: skip
def schedule(trace: Path, output: Path, engine_version: str, lockstep: bool) -> None:
    """Log every decision of the scheduler on TRACE, in the golden files' format."""
    from sim.schedule import log_trace

    log_trace(trace, output, engine_version, lockstep)


@cli.command()
@click.argument("record", type=click.Path(path_type=Path))
@click.option("--request", "request_id", metavar="ID", help="The life of this request.")
@click.option("--top", type=click.IntRange(min=0), default=10, show_default=True,
              help="How many of the longest waits.")  # fmt: skip
@click.option("--all", "every", is_flag=True, help="Each change of cause of a long wait.")
@click.option("--json", "as_json", is_flag=True, help="Print the same as JSON.")
@click.option("--trace", type=click.Path(path_type=Path),
              help="The trace of a log of decisions, if it is not beside the log.")  # fmt: skip
def explain(
    record: Path, request_id: str | None, top: int, every: bool, as_json: bool, trace: Path | None
) -> None:
    """Say why requests waited, and who was preempted for whom, in RECORD.

    RECORD is a directory that replay --out or serve --record wrote, or a log of decisions.
    """
    from sim.explain.command import explain as explain_record

    explain_record(record, request_id, top=top, every=every, as_json=as_json, trace=trace)


@cli.command()
@click.option("--seed", type=int, default=0, show_default=True)
def demo(seed: int) -> None:
    """Serve the embedded model, ask it, and see the simulation of the same requests agree."""
    from sundog_demo import run_demo

    sys.exit(run_demo(seed))


def sole_cause(error: BaseException) -> BaseException:
    """What went wrong, out of the exception groups of the nurseries it crossed."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def main() -> None:
    """Run the command line; a mistake of the user's is one message and exit code 2."""
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
