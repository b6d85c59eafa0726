"""Finding the records of real servers below a directory.

There are four kinds: `*.server.toml`, figures of one server written down by hand (see `servers/`);
folders of `meta.json` and `requests.jsonl.gz`, a log of every request; `summary.csv`, latency
summaries by stage of load; and folders that `sundog bench --out` wrote.
"""

from collections.abc import Iterator
from pathlib import Path

from sim.figures.validate.logs import read_log
from sim.figures.validate.measured import MeasuredError, Server
from sim.figures.validate.runs import clients_runs
from sim.figures.validate.stages import read_stages
from sim.figures.validate.written import read_written
from sim.files.run_files import SUMMARY


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
