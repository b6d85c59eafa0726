"""The records of real servers below a directory, and the one kind that is read here.

There are four kinds: `*.server.toml`, figures of one server written down by hand (see `servers/`);
folders of `meta.json` and `requests.jsonl.gz`, a log of every request; `summary.csv`, latency
summaries by stage of load; and folders that `sundog bench --out` wrote.

In a `summary.csv` each experiment is one server, its stages one after another. Prompts are `groups` x
`prompts_per_group` different ones that come round and round, those of a group with `system_len`
tokens in common, so that with prefix caching nearly all of them hit. Row stage -1 sums up the
whole run and is left out.
"""

import csv
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from sim.figures.validate.logs import read_log
from sim.figures.validate.measured import (
    THROUGHPUT,
    Figures,
    MeasuredError,
    Rounds,
    Server,
    Stage,
    exact_poisson,
    model_of,
)
from sim.figures.validate.runs import clients_runs
from sim.figures.validate.written import read_written
from sim.files.run_files import SUMMARY
from sim.trace.record import TraceRequest

FITTED = {
    ("20260217-203421-llama-2-70b-hf-tp4-codegen", "0"): "skew of ranks, launching layers",
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
            rounds = Rounds(int(row["groups"]), int(row["prompts_per_group"]), int(row["system_len"]))
            lengths = round(float(row["prompt_len_mean"])), int(row["output_len_requested"])
            requests += [
                rounds.request(first + i, start_s + arrival_s, *lengths)
                for i, arrival_s in enumerate(arrivals)
            ]
            figures: Figures = {name: float(row[key]) / 1e3 for name, key in COLUMNS.items()}
            if row.get("req_per_s"):
                figures[THROUGHPUT] = float(row["req_per_s"])
            fitted = FITTED.get((experiment, row["stage"]))
            gave_up = int(row.get("n_fail") or 0)
            stages.append(Stage(row["stage"], first, len(requests), rate, figures, fitted, gave_up))
            start_s += duration_s
        except (KeyError, TypeError, ValueError) as error:
            raise MeasuredError(f"{path}, line {number}: {error}") from None
    number, row = rows[0]
    try:
        return Server(
            name=experiment,
            model=model_of(row["model"], path.parent),
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


def find_servers(directory: Path) -> Iterator[Server]:
    """Every record below `directory`, in order of their paths; raises MeasuredError."""
    if not directory.is_dir():
        raise MeasuredError(f"{directory} is no directory")
    found = False
    for path in sorted(directory.rglob("*")):
        if path.name == "meta.json":
            servers = [read_log(path.parent)]
        elif path.name == "summary.csv":
            servers = read_stages(path)
        elif path.name == SUMMARY:
            servers = list(clients_runs(path))
        elif path.name.endswith(".server.toml"):
            servers = [read_written(path)]
        else:
            continue
        found = found or bool(servers)
        yield from servers
    if not found:
        raise MeasuredError(
            f"{directory} has no record of a server: neither *.server.toml, nor meta.json with"
            " requests.jsonl.gz, nor summary.csv, nor a run of `sundog bench`"
        )
