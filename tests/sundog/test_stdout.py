"""`-o -` means standard output, in each command that writes one file."""

import gzip
import json
from pathlib import Path

from tests import warm

GOLDEN = "tests/golden/01_light.trace.json.gz"
TRACE = "traces/chat-poisson-2rps-5min.jsonl.gz"


def test_a_log_of_decisions_goes_to_stdout(tmp_path: Path) -> None:
    """The lines that a file would hold, and no file of that name; `./-` is one."""
    done = warm.run("sundog", "schedule", GOLDEN, "-o", "-")
    assert done.returncode == 0, done.stderr
    assert not Path("-").exists()
    log = tmp_path / "log.jsonl"
    assert warm.run("sundog", "schedule", GOLDEN, "-o", log).returncode == 0
    assert done.stdout == log.read_text()
    golden = gzip.decompress(Path("tests/golden/01_light.log.jsonl.gz").read_bytes()).decode()
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        json.loads(line) for line in golden.splitlines()
    ]


def test_a_page_goes_to_stdout_without_its_name(tmp_path: Path) -> None:
    """Nothing but the page; a folder that does not exist is one error."""
    run = tmp_path / "run"
    assert warm.run("sundog", "replay", TRACE, "--limit", "20", "--out", run).returncode == 0
    done = warm.run("sundog", "report", run, "-o", "-")
    assert done.returncode == 0 and done.stdout.rstrip().endswith("</html>")
    assert done.stdout.lstrip().lower().startswith("<!doctype html")
    done = warm.run("sundog", "report", run, "-o", tmp_path / "nowhere" / "page.html")
    assert done.returncode == 2 and "nowhere" in done.stderr and len(done.stderr.splitlines()) == 1
