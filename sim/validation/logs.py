"""Server with its own log of every request: `meta.json` and `requests.jsonl.gz`."""

from pathlib import Path
from typing import Any

import numpy as np

from sundog.actors.core.engine_version import is_async
from sundog.sim.figures.server_log import INSTANTS, MeasuredError, read_rows
from sundog.sim.files.lines import parse_object, read_lines
from sundog.sim.trace.record import TraceRequest
from sundog.sim.validation.measured import (
    Figures,
    MeasuredServer,
    Stage,
    engine_options,
    figures_of,
    model_of,
)


def read_log(folder: Path) -> MeasuredServer:
    """Read the server that wrote `folder`; raises MeasuredError naming file, line and field."""
    meta = _object(folder / "meta.json")
    rows = read_rows(folder / "requests.jsonl.gz")
    start_s = rows[0]["queued_ts"]
    requests = [
        TraceRequest(str(i), row["queued_ts"] - start_s, row["input_toks"], row["output_toks"])
        for i, row in enumerate(rows)
    ]
    engine = meta.get("engine_kwargs")
    if not isinstance(engine, dict):
        raise MeasuredError(f"{folder / 'meta.json'}: engine_kwargs is missing")
    cache, version = meta.get("kv_cache") or {}, str(meta.get("vllm_version"))
    options, refused = engine_options({**cache, **engine})
    try:
        return MeasuredServer(
            name=folder.name,
            model=model_of(str(engine["model"]), folder),
            gpu=folder.name.partition("_")[0],
            tensor_parallel_size=int(engine["tensor_parallel_size"]),
            max_num_seqs=int(engine["max_num_seqs"]),
            max_num_batched_tokens=int(engine["max_num_batched_tokens"]),
            max_model_len=engine.get("max_model_len"),
            num_gpu_blocks=cache.get("num_gpu_blocks"),
            gpu_memory_utilization=cache.get("gpu_memory_utilization"),
            refused=refused,
            options=options,
            async_scheduling=is_async(version, options.pipeline_parallel_size),
            engine_version=version,
            at_client=False,
            requests=requests,
            stages=[
                Stage(
                    "all",
                    0,
                    stop=len(rows),
                    rate_per_s=len(rows) / requests[-1].arrival_s,
                    figures=_figures(rows),
                )
            ],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise MeasuredError(f"{folder / 'meta.json'}: engine_kwargs: {error}") from None


def _object(path: Path) -> dict[str, Any]:
    text = b"\n".join(read_lines(str(path), MeasuredError.at))
    return parse_object(str(path), 1, text, MeasuredError.at)


def _figures(rows: list[dict[str, Any]]) -> Figures:
    queued, first, last = (np.array([row[name] for row in rows]) for name in INSTANTS)
    return figures_of(queued, first, last, np.array([row["output_toks"] for row in rows]))
