"""When the requests of a log or a run began and ended, for calibration."""

from pathlib import Path

import numpy as np

from sim.figures.calibrate.from_requests import Observed
from sim.figures.validate.logs import read_rows
from sim.files.run_files import REQUESTS
from sim.record.run_directory import open_run

COLUMNS = ("first_scheduled_s", "first_token_s", "finish_s", "num_prompt_tokens", "num_output_tokens")


def read_observed(folder: Path) -> Observed:
    """The finished requests of a run directory, or of a server's log."""
    if (folder / REQUESTS).is_file():
        table = open_run(folder).requests()
        columns = [table[name].to_numpy().astype(np.float64) for name in COLUMNS]
        # A client does not know when its request was scheduled: for all it knows, at once.
        columns[0] = np.where(np.isnan(columns[0]), table["arrival_s"].to_numpy(), columns[0])
        done = ~np.isnan(columns[1]) & ~np.isnan(columns[2])
        return Observed(*(column[done] for column in columns))
    rows = read_rows(folder / "requests.jsonl.gz")
    scheduled = [float(row.get("scheduled_ts", row["queued_ts"])) for row in rows]
    names = ("first_token_ts", "last_token_ts", "input_toks", "output_toks")
    return Observed(
        np.array(scheduled), *(np.array([row[name] for row in rows], dtype=np.float64) for name in names)
    )
