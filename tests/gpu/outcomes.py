"""Outcome of each test as a line of JSON, written at once so that it survives the end of the run.

A pytest plugin, `-p tests.gpu.outcomes`; SUNDOG_OUTCOMES names the file.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "SUNDOG_OUTCOMES"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """The call, or whatever failed or was skipped around it; of several processes the first one notes it."""
    file = os.environ.get(VARIABLE)
    if file is None or "PYTEST_XDIST_WORKER" in os.environ or (report.when != "call" and report.passed):
        return
    row = {"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 2)}
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        row["error"] = str(crash.message if crash else report.longrepr).strip()[:600]
    with Path(file).open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(row) + "\n")


def summed_up(file: Path) -> dict[str, Any]:
    """How many passed, failed and were skipped, and what the failures say."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    rows = [json.loads(line) for line in lines]
    counts = {kind: sum(row["outcome"] == kind for row in rows) for kind in ("passed", "failed", "skipped")}
    return {**counts, "failures": [row for row in rows if row["outcome"] == "failed"]}
