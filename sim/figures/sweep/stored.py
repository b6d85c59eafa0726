"""A run of an experiment that lies on disk, as it was kept by `replay --out`."""

from pathlib import Path
from typing import TYPE_CHECKING

from sim.figures.sweep.played import Played, Spans
from sim.figures.terms import Terms
from sim.record.run_directory import open_run
from sim.record.run_writer import rows_of
from sim.record.tables import USED

if TYPE_CHECKING:
    import pyarrow as pa


def read_played(
    folder: Path, *, front_end_s: float, num_replicas: int, num_blocks: int, terms: Terms, load: bytes
) -> Played:
    """The run in the folder; raises RunError. `num_blocks` is each replica's, without the null block."""
    run = open_run(folder)
    requests, steps = run.requests(), run.steps()
    return Played.of(
        rows_of(requests),
        requests["request_id"].to_pylist(),
        [_spans(steps, replica) for replica in range(num_replicas)],
        front_end_s=front_end_s,
        num_replicas=num_replicas,
        num_blocks=num_blocks,
        terms=terms,
        load=load,
    )


def _spans(steps: "pa.Table", replica: int) -> Spans:
    own = steps["replica"].to_numpy() == replica
    blocks = (steps[name].fill_null(-1).to_numpy()[own] for name in USED)
    return Spans(steps["start_s"].to_numpy()[own], steps["end_s"].to_numpy()[own], *blocks)
