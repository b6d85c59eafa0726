"""`python -m tests.again OPTION… -- WHAT…`: pytest, and what failed in it once more, alone, and named.

Tests with live servers and the real clock share the cores with all others while the suite runs. One that met
a limit only there passes alone; a defect fails again. More than a few failures are no matter of luck: then,
and where pytest ended otherwise than by failed tests, its own status stands. The options hold for both runs,
what comes after `--` (files, workers) only for the first.
"""

import json
import subprocess
import sys
from pathlib import Path

MOST = 5
CACHE = Path(".pytest_cache/again")
FAILED = 1
"""Pytest's exit status when tests failed, and nothing worse."""


def main(options: list[str], what: list[str]) -> int:
    """The status to end with."""
    status = _pytest(*options, "--cache-clear", *what)
    last_failed = CACHE / "v/cache/lastfailed"
    names = sorted(json.loads(last_failed.read_text())) if last_failed.exists() else []
    if status != FAILED or not 0 < len(names) <= MOST:
        return status
    print("\nOnce more, alone:", *names, sep="\n  ", flush=True)
    status = _pytest(*options, *names)
    if status == 0:
        print("Passed alone, failed beside the others:", *names, sep="\n  ")
    return status


def _pytest(*arguments: str) -> int:
    return subprocess.call([sys.executable, "-m", "pytest", "-o", f"cache_dir={CACHE}", *arguments])


if __name__ == "__main__":
    split = sys.argv.index("--")
    sys.exit(main(sys.argv[1:split], sys.argv[split + 1 :]))
