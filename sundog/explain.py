"""`sundog explain`: a record in, a page or JSON out."""

import json
import sys
from pathlib import Path

from sim.explain.data import request_data, run_data
from sim.explain.findings import findings
from sim.explain.load import find_life, load
from sim.show.explained_request import RequestPage, console_for
from sim.show.explained_run import print_run


def explain(
    record: Path,
    request_id: str | None = None,
    *,
    top: int = 10,
    every: bool = False,
    as_json: bool = False,
    trace: Path | None = None,
) -> None:
    """Print the life of one request, or what a whole run tells.

    Raises ConfigError for a record that cannot be read and a request that is not in it.
    """
    history = load(record, trace)
    if history.cut_off:
        print(f"{record} breaks off: what follows is up to there", file=sys.stderr)
    if request_id is not None:
        life = find_life(history, request_id)
        if as_json:
            print(json.dumps(request_data(history, life), indent=1))
        else:
            RequestPage(history, life, every=every).print(console_for())
        return
    found = findings(history, top)
    if as_json:
        print(json.dumps(run_data(found, history.header), indent=1))
    else:
        print_run(console_for(), record.name, found, history.header)
