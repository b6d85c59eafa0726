"""`sundog demo`: the page that people see first."""

import re

from tests.sundog.test_runs import sundog


def test_the_simulation_agrees_with_the_live_run_it_was_not_fitted_to() -> None:
    """Every batch and every answer; what steps take was learnt from other questions."""
    done = sundog("demo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "formed the same" in done.stdout and "6 of 6 answers came out token for token" in done.stdout
    learnt = re.search(r"fitted to ([\d,]+) steps of other questions", done.stdout)
    assert learnt is not None and int(learnt[1].replace(",", "")) > 300
    mean = next(line for line in done.stdout.splitlines() if line.startswith("mean"))
    assert all(float(value) > 0 for value in mean.split()[1:])
