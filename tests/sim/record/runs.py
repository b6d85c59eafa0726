"""Runs on disk for tests: the files of a recorder that has kept everything."""

from collections.abc import Mapping
from pathlib import Path

from sundog.sim.figures.metrics import Summary
from sundog.sim.record.recorder import Recorder
from sundog.sim.record.run_directory import write_facts
from sundog.sim.record.run_writer import RunWriter


def write_run(
    folder: Path,
    recorder: Recorder,
    summary: Summary,
    options: Mapping[str, object],
    run_id: str | None = None,
) -> None:
    """The tables, the summary and the options, as RunOutput writes them."""
    writer = RunWriter(folder, recorder.num_replicas, run_id)
    writer.requests(recorder.columns, len(recorder.columns), recorder.front_end_s)
    for replica, steps in enumerate(recorder.steps):
        writer.steps(replica, steps)
    writer.close()
    write_facts(folder, run_id, summary.to_json(), options, None)
