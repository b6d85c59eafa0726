"""Calibration of an engine of this machine through its Runner, as a cost file.

A server with the engine is measured and simulated: first to fit the latency to the engine and back, then to
test the whole profile on a load that was not fitted.
"""

import os
import platform
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio

from sundog.actors.config import ConfigError, EngineConfig
from sundog.actors.config.front_costs import FrontCosts
from sundog.actors.config.hop_costs import NO_HOPS, HopCosts
from sundog.actors.engine.backend import Backend
from sundog.actors.engine.executor import Executor, Runner
from sundog.actors.kernel.actor import Ref
from sundog.actors.messages import Batch, Capacity, Interrupt, Load
from sundog.builds.measuring import ClientLoad, Cores, disturbed, predict
from sundog.builds.simulated import deploy
from sundog.builds.torch_limits import as_replicas, check_quantization, planned_ahead
from sundog.calibration.found import FoundCost, in_words
from sundog.calibration.served import ServedLoads, measure_host
from sundog.ends import remark
from sundog.options.engine import EngineOptions, MeasuringOptions
from sundog.options.measured import FIXED
from sundog.options.row import rows
from sundog.options.simulation import TargetOptions, TermsOptions
from sundog.runtime.kv_transfer.port import MovesKv
from sundog.runtime.serve import RealModel, torch_backends
from sundog.runtime.worker.hop_probe import measured_hops
from sundog.sim.cost.cost_file import HOST, MEASURED, write_cost
from sundog.sim.cost.profile import ENGINE, HOPS, HostShare, MeasuredEngine
from sundog.sim.figures.fit_engine import BUSY, EngineFitted, Limits, Prober, fit_engine
from sundog.sim.figures.metrics import Summary
from sundog.sim.show.comparison import LATENCIES
from sundog.sim.show.progress import runs_progress


def machine(device: str) -> dict[str, object]:
    """Return the device, its threads, and versions. Imports torch."""
    import torch

    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else _processor(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "sundog": _version("sundog"),
        "torch": torch.__version__,
        "transformers": _version("transformers"),
        "python": platform.python_version(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"


SEED = 11
LEAST_TOKENS, MOST_TOKENS, WRITE_S = 2**13, 2**17, 4.0
"""Bounds of the context that the engine writes, in tokens, and the seconds in which it writes."""
LEAST_CONTEXT, GROWTH = 32, 16
"""Smallest context of an engine that can be calibrated, and the tokens by which contexts may grow during the
measurement.
"""


@dataclass(frozen=True, slots=True)
class Tried:
    """Host's share, and the errors of the trial's means: predicted / measured - 1."""

    host: HostShare
    front_s: tuple[tuple[str, float], ...]
    """Seconds of TTFT beyond the engine's steps, by load."""
    errors: dict[str, float]
    num_requests: int


def from_engine(
    source: str, engine: EngineOptions, measuring: MeasuringOptions, output: Path, *, name: str | None = None
) -> FoundCost:
    """Measure the engine that `serve` would run with these options, and write its file.

    `name` is the model's, if it is not that of the folder.
    """
    _refuse_unmeasured(engine)
    model = RealModel.open(source, name)
    if model.embedding is not None:
        raise ConfigError(
            f"{model.name} is an embedding model: only models that generate text can be calibrated"
        )
    cores = Cores()
    engine = planned_ahead(engine, measuring.device)
    config = engine.config(model.max_position_embeddings)
    if config.scheduler.max_model_len < LEAST_CONTEXT:
        raise ConfigError(
            f"max_model_len is {config.scheduler.max_model_len}, too short to be measured: give at least"
            f" {LEAST_CONTEXT}"
        )
    new_backend = torch_backends(
        model,
        config,
        device=measuring.device,
        dtype=engine.dtype,
        seed=engine.seed,
        num_threads=measuring.num_threads,
        gpu_memory_utilization=engine.gpu_memory_utilization,
        quantization=engine.quantization,
    )
    with runs_progress("shapes of steps") as on_progress:
        vocab_size, seconds = model.tokenizer.vocab_size, measuring.seconds
        capacity, kv_token_bytes, fitted = trio.run(
            partial(_measure, new_backend(0), config, vocab_size, seconds, on_progress)
        )
    scheduler = config.with_blocks(capacity.num_blocks)
    known = MeasuredEngine(
        model.name,
        capacity.num_blocks,
        block_size=capacity.block_size,
        max_model_len=scheduler.max_model_len,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_num_seqs=scheduler.max_num_seqs,
        async_scheduling=scheduler.async_scheduling,
        kv_token_bytes=kv_token_bytes,
    )
    evidence = {**machine(measuring.device), "dtype": engine.dtype, **_evidence(fitted)}
    tried, hops = None, NO_HOPS
    if measuring.http:
        remark("measuring what a server adds")
        limits = (scheduler.max_num_running, scheduler.max_model_len)
        served = measure_host(source, measuring, engine, fitted.model, limits)
        with TemporaryDirectory(prefix="sundog-") as scratch:
            known_so_far = Path(scratch) / "profile.toml"
            hops = measured_hops()
            _write(known_so_far, model.name, fitted, known, served.host, hops, {})
            tried = try_served(known_so_far, engine, served)
        evidence |= _trial(tried)
    others = cores.others()
    evidence["others"] = round(others, 3)
    refuse_ruined(fitted, tried, others)
    _write(output, model.name, fitted, known, HostShare() if tried is None else tried.host, hops, evidence)
    remarks = _remarks(output, fitted)
    if tried is not None:
        remarks += _served_remarks(tried, hops)
    if (warning := disturbed(others)) is not None:
        remarks.append(warning)
    return FoundCost(file=output, remarks=tuple(remarks))


MOST_OFF = 0.5
"""Error from which the machine is assumed to have changed between measurement and trial."""


def refuse_ruined(fitted: EngineFitted, tried: Tried | None, others: float) -> None:
    """Raise ConfigError if steps or requests that were not fitted contradict the profile."""
    contradictions = []
    if fitted.error(0.5) > MOST_OFF:
        contradictions.append(f"errors for other step shapes: {fitted.error(0.5):.0%} (median)")
    if tried is not None:
        contradictions += [
            f"{name} of requests at random is off by {error:+,.0%}"
            for name, error in tried.errors.items()
            if name in ("TPOT", "E2E") and not -MOST_OFF <= error <= 1 / (1 - MOST_OFF) - 1
        ]
    if contradictions:
        raise ConfigError(
            "the profile is not written, because a separate measurement contradicts it:"
            f" {'; '.join(contradictions)}. Other processes had {others:.0%} of the cores:"
            " calibrate when the machine is quiet"
        )


def _write(
    path: Path,
    name: str,
    fitted: EngineFitted,
    known: MeasuredEngine,
    host: HostShare,
    hops: HopCosts,
    evidence: dict[str, object],
) -> None:
    tables = {ENGINE: asdict(known), HOST: asdict(host), HOPS: asdict(hops), MEASURED: evidence}
    write_cost(path, fitted.model, f"sundog calibrate {name}", fitted.measured, tables)


def _refuse_unmeasured(engine: EngineOptions) -> None:
    check_quantization(engine)
    if (size := engine.tensor_parallel_size) != 1:
        raise ConfigError(f"--tensor-parallel-size is {size}: calibration measures one rank; leave it at 1")
    if as_replicas(engine).replicas != 1:
        raise ConfigError(f"--replicas is {engine.replicas}: calibration measures one engine; leave it out")
    if engine.speculation is not None:
        raise ConfigError("--speculative-config cannot be calibrated: leave it out")


@asynccontextmanager
async def _executor(backend: Backend) -> AsyncIterator[Ref[Batch | Interrupt | Load]]:
    try:
        async with trio.open_nursery() as nursery:
            runner = Runner("runner", backend)
            executor = Executor("executor", [runner.ref("executor")])
            address = executor.ref("calibrate")
            await nursery.start(runner.live)
            await nursery.start(executor.live)
            yield address
            address.close()
    finally:
        await backend.close()


async def _measure(
    backend: Backend,
    config: EngineConfig,
    vocab_size: int,
    seconds: float,
    on_progress: Callable[[int, int], None] | None,
) -> tuple[Capacity, int, EngineFitted]:
    assert isinstance(backend, MovesKv)
    async with _executor(backend) as executor:
        capacity = await executor.ask(Load())
        scheduler = config.with_blocks(capacity.num_blocks)
        remark(f"measuring steps for about {seconds:.0f} s")
        prober = Prober(executor, capacity, vocab_size, SEED, is_ahead=scheduler.async_scheduling)
        longest = scheduler.max_model_len - GROWTH
        most = min(capacity.num_blocks - 1, MOST_TOKENS // capacity.block_size)
        least = min(most, LEAST_TOKENS // capacity.block_size)
        chunk_tokens = scheduler.max_num_batched_tokens
        num_blocks = await prober.write(least, most, chunk_tokens, longest, WRITE_S)
        limits = Limits(
            scheduler.max_num_running,
            chunk_tokens,
            context=longest,
            num_blocks=num_blocks,
            block_size=capacity.block_size,
        )
        fitted = await fit_engine(prober, limits, seconds, SEED, on_progress or (lambda done, total: None))
        return capacity, backend.kv_block_bytes() // capacity.block_size, fitted


def _evidence(fitted: EngineFitted) -> dict[str, object]:
    shape, error = fitted.worst
    return {
        "shapes": fitted.num_shapes,
        "rounds": fitted.num_rounds,
        "quantile": fitted.quantile,
        "unrest": round(fitted.unrest, 4),
        "held_out_shapes": len(fitted.held_out),
        "held_out_error_median": round(fitted.error(0.5), 4),
        "held_out_error_p90": round(fitted.error(0.9), 4),
        "held_out_error_worst": round(error, 4),
        "held_out_worst_shape": str(shape),
    }


def _remarks(output: Path, fitted: EngineFitted) -> list[str]:
    shape, error = fitted.worst
    remarks = [
        f"{output}: {in_words(fitted.model)}, from {fitted.num_shapes} shapes of steps",
        f"{len(fitted.held_out)} other shapes are explained to {fitted.error(0.5):.1%} (median),"
        f" {fitted.error(0.9):.1%} (p90), {error:+.1%} at worst ({shape})",
    ]
    if fitted.quantile == BUSY:
        remarks.append(
            f"the machine was busy: steps took {fitted.unrest:.0%} longer in the median than at their best;"
            " calibrate again when it is quiet"
        )
    return remarks


def _trial(tried: Tried) -> dict[str, object]:
    errors = {f"trial_error_{name.lower()}": round(error, 4) for name, error in tried.errors.items()}
    front_s = [(name, round(seconds, 6)) for name, seconds in tried.front_s]
    return {"trial_requests": tried.num_requests, **errors, "front_s": front_s}


def _served_remarks(tried: Tried, hops: HopCosts) -> list[str]:
    host = tried.host
    errors = ", ".join(f"{name} {error:+.1%}" for name, error in tried.errors.items())
    return [
        f"served, steps take {host.slowdown:.2f} times as long as alone, {host.step_s * 1e3:.2f} ms more,"
        f" {host.token_s * 1e6:.0f} us a token, {host.chunk_s * 1e3:.2f} ms a chunk; a request's way takes"
        f" {host.request_s * 1e3:.2f} ms, and {(hops.submit + hops.output) * 1e6:.0f} us to the"
        " engine's process and back",
        f"{tried.num_requests} random requests that were not fitted are predicted with {errors} (means)",
    ]


def try_served(profile: Path, engine: EngineOptions, served: ServedLoads) -> Tried:
    """Simulate the measured loads; `profile` has the host's share of steps."""
    own: dict[str, Any] = {row.name: row.default for row in rows(EngineOptions) if row.name in FIXED}
    simulated = deploy(replace(engine, **own), TargetOptions(cost=str(profile)))
    front_s = list[tuple[str, float]]()
    usual_s = list[float]()
    for stage in served.fitted:
        predicted = predict(
            ClientLoad("", num_clients=stage.num_clients), simulated, TermsOptions(), stage.rows
        )
        wait_s = max(0.0, _ttft_s(stage.measured) - _ttft_s(predicted))
        front_s.append((stage.name, wait_s))
        if stage.num_clients is None:  # those in a closed loop wait for each other at the door
            usual_s.append(wait_s)
    request_s = sum(usual_s) / len(usual_s)
    trial = served.trial
    config = replace(simulated.config, front=FrontCosts(request=request_s))
    predicted = predict(ClientLoad(""), replace(simulated, config=config), TermsOptions(), trial.rows)
    errors = {
        name: getattr(predicted, field).mean / getattr(trial.measured, field).mean - 1
        for name, field in LATENCIES
        if getattr(trial.measured, field) is not None and getattr(predicted, field) is not None
    }
    host = replace(served.host, request_s=request_s)
    return Tried(host, tuple(front_s), errors, trial.measured.num_finished)


def _ttft_s(summary: Summary) -> float:
    return 0.0 if summary.ttft_s is None else summary.ttft_s.mean
