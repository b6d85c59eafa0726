"""A run of `sundog bench --out` as the record of a real server: what was asked, and what clients measured.

Which machine it was is in the run's `config.toml`, if the bench was given --simulate.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from actors.core.engine_version import NEWEST, is_async
from sim.cost.profile import read_profile
from sim.figures.validate.measured import MeasuredError, Server, Stage, engine_options, figures_of, model_of
from sim.hardware.gpu import load_gpu
from sim.hardware.model import load_model
from sim.record.run_directory import Run, open_run
from sim.target import Target
from sim.trace.read import read_trace
from sim.trace.record import TraceRequest
from sim.workload.spec import read_spec

COLUMNS = ("arrival_s", "first_token_s", "finish_s", "num_output_tokens")


def read_clients_run(run: Run) -> Server:
    """The server that the clients asked; raises MeasuredError where its machine is not said."""
    config, folder = run.config, run.path
    gpu = config.get("simulate")
    if gpu is None:
        raise MeasuredError(
            f"{folder / 'config.toml'} does not say which machine it was: give `sundog bench` --simulate GPU"
        )
    path = folder / gpu
    if path.suffix == ".toml" and path.is_file() and read_profile(path) is not None:
        raise MeasuredError(
            f"{folder}: {gpu} is of an engine that was measured: `sundog bench --config"
            f" {folder / 'config.toml'}` says what it predicts"
        )
    rows = [row for row in run.requests().to_pylist() if row["reason"] in ("stop", "length")]
    if len(rows) < 2:
        raise MeasuredError(f"{folder} has {len(rows)} requests that finished, at least 2 are needed")
    model = model_of(str(config.get("shape") or run.summary["client"]["model"]), folder)
    gpu = str(path) if path.is_file() else str(gpu)
    tokens, seqs = Target(load_model(model), load_gpu(gpu)).default_limits
    columns = [np.array([row[name] for row in rows], dtype=np.float64) for name in COLUMNS]
    requests = _requests(rows, _contents(config, folder))
    version = str(config.get("engine_version", NEWEST))
    options, refused = engine_options(config)
    figures, rate_per_s = figures_of(*columns), len(rows) / max(requests[-1].arrival_s, 1e-9)
    return Server(
        name=folder.resolve().name,
        model=model,
        gpu=gpu,
        tensor_parallel_size=config.get("tensor_parallel_size", 1),
        max_num_seqs=config.get("max_num_seqs", seqs),
        max_num_batched_tokens=config.get("max_num_batched_tokens", tokens),
        max_model_len=config.get("max_model_len"),
        num_gpu_blocks=config.get("num_gpu_blocks"),
        async_scheduling=config.get("async_scheduling", is_async(version, options.pipeline_parallel_size)),
        engine_version=version,
        at_client=True,
        requests=requests,
        stages=[Stage("all", 0, len(rows), rate_per_s, figures, num_gave_up=run.summary["num_aborted"])],
        gpu_memory_utilization=config.get("gpu_memory_utilization"),
        max_concurrency=config.get("clients"),
        client_timeout_s=config.get("timeout"),
        refused=refused,
        options=options,
    )


Contents = dict[str, TraceRequest]


def _requests(rows: list[dict[str, Any]], contents: Contents) -> list[TraceRequest]:
    """What was asked and answered, the first at 0."""
    start_s, found = rows[0]["arrival_s"], []
    for number, row in enumerate(rows):
        known = contents.get(row["request_id"])
        request = TraceRequest(
            str(number),
            row["arrival_s"] - start_s,
            row["num_prompt_tokens"],
            max(row["num_output_tokens"], 1),
        )
        if known is not None:
            request = request._replace(hash_ids=known.hash_ids, hash_block_tokens=known.hash_block_tokens)
        found.append(request)
    return found


def _contents(config: dict[str, Any], folder: Path) -> Contents:
    """The trace's rows by name, which say what prompts share; none where the trace is gone."""
    path = folder / str(config.get("trace"))
    if not path.exists():
        return {}
    is_workload = path.suffix == ".toml"
    source = read_spec(path).requests(config.get("seed", 0)) if is_workload else read_trace(str(path))
    return {row.request_id: row for row in source}


def clients_runs(path: Path) -> Iterator[Server]:
    """The run whose summary is at `path`, if clients made it."""
    run = open_run(path.parent)
    if run.is_clients:
        yield read_clients_run(run)
