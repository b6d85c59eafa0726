"""Latency summaries by stage of load (`summary.csv`), of servers asked for a few prompts in turn.

Each experiment is one server, its stages one after another. Prompts are `groups` x
`prompts_per_group` different ones that come round and round, those of a group with `system_len`
tokens in common, so that with prefix caching nearly all of them hit. Row stage -1 sums up the
whole run and is left out.
"""

import csv
from itertools import groupby
from pathlib import Path

from sim.figures.validate.arrivals import exact_poisson
from sim.figures.validate.logs import _short
from sim.figures.validate.measured import Figures, MeasuredError, Server, Stage
from sim.trace.record import TraceRequest

BLOCK_SIZE = 16
FITTED = {
    ("20260217-203421-llama-2-70b-hf-tp4-codegen", "0"): "skew of ranks",
    ("20260217-155451-llama-2-7b-tp1-codegen", "0"): "bound of decode attention",
    ("20260217-155451-llama-2-7b-tp1-codegen", "1"): "bound of decode attention",
    ("20260217-231439-llama-2-7b-tp1-general", "1"): "tiles beside chunks",
}
"""(experiment, stage) that a part of the simulator was fitted to."""
COLUMNS = {
    "ttft mean": "ttft_mean_ms",
    "ttft p50": "ttft_median_ms",
    "ttft p90": "ttft_p90_ms",
    "ttft p99": "ttft_p99_ms",
    "e2e mean": "e2e_mean_ms",
    "e2e p50": "e2e_median_ms",
    "e2e p90": "e2e_p90_ms",
    "e2e p99": "e2e_p99_ms",
    "tpot mean": "tpot_true_mean_ms",
}


def read_stages(path: Path) -> list[Server]:
    """A server per experiment; raises MeasuredError naming file, line and column."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [(number, row) for number, row in enumerate(csv.DictReader(file), 2)]
    except (OSError, ValueError) as error:
        raise MeasuredError(f"{path}: {error}") from None
    servers = []
    for experiment, group in groupby(rows, key=lambda pair: pair[1].get("experiment", "")):
        stages = [pair for pair in group if pair[1].get("stage") != "-1"]
        if stages:
            servers.append(_server(path, experiment, stages))
    return servers


def _server(path: Path, experiment: str, rows: list[tuple[int, dict[str, str]]]) -> Server:
    requests: list[TraceRequest] = []
    stages: list[Stage] = []
    start_s = 0.0
    for number, row in rows:
        try:
            rate, duration_s = float(row["rate"]), float(row["duration"])
            first, count = len(requests), round(rate * duration_s)
            arrivals = exact_poisson(rate, count, number, experiment)
            requests += [
                _request(first + i, start_s + arrival_s, row) for i, arrival_s in enumerate(arrivals)
            ]
            figures: Figures = {name: float(row[key]) / 1e3 for name, key in COLUMNS.items()}
            fitted = FITTED.get((experiment, row["stage"]))
            stages.append(Stage(row["stage"], first, len(requests), rate, figures, fitted))
            start_s += duration_s
        except (KeyError, TypeError, ValueError) as error:
            raise MeasuredError(f"{path}, line {number}: {error}") from None
    number, row = rows[0]
    try:
        return Server(
            name=experiment,
            model=_short(row["model"]),
            gpu="h100",
            tensor_parallel_size=int(row["tp"]),
            max_num_seqs=int(row["max_seqs"]),
            max_num_batched_tokens=int(row["mbt"]),
            max_model_len=None,
            num_gpu_blocks=None,
            async_scheduling=True,
            at_client=True,
            requests=requests,
            stages=stages,
        )
    except (KeyError, ValueError) as error:
        raise MeasuredError(f"{path}, line {number}: {error}") from None


def _request(index: int, arrival_s: float, row: dict[str, str]) -> TraceRequest:
    """Prompt number `index` of the round, its blocks named by what they hold."""
    groups, per_group = int(row["groups"]), int(row["prompts_per_group"])
    prompt = index % (groups * per_group)
    num_tokens = round(float(row["prompt_len_mean"]))
    num_shared = int(row["system_len"]) // BLOCK_SIZE
    ids = tuple(
        (prompt // per_group if block < num_shared else groups + prompt) * 1000 + block
        for block in range(num_tokens // BLOCK_SIZE)
    )
    return TraceRequest(
        str(index),
        arrival_s,
        num_tokens,
        int(row["output_len_requested"]),
        hash_ids=ids,
        hash_block_tokens=BLOCK_SIZE,
    )
