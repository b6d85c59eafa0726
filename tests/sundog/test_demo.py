"""`sundog demo`: the page that people see first."""

import io
import re

import numpy as np
import pytest
from rich.console import Console

from sundog.commands.demo.times import RoundTimes, TimesBeside
from tests.sundog.test_runs import sundog

QUESTIONS = ("first?", "second?")


@pytest.mark.long(reason="runs the whole demo")
def test_the_simulation_agrees_with_the_live_run_it_was_not_fitted_to() -> None:
    """Batches and answers come first, then times; what steps take was learnt from other questions."""
    done = sundog("demo")
    assert done.returncode == 0, done.stdout + done.stderr
    exact = re.search(r"formed the same\s+(\d+)\s+batches", done.stdout)
    assert exact is not None and int(exact[1]) > 300
    assert "36 of 36 answers came out token for token" in done.stdout
    assert exact.end() < done.stdout.index("milliseconds") < done.stdout.index("within the machine's noise")
    learnt = re.search(r"fitted to ([\d,]+) steps of other questions", done.stdout)
    assert learnt is not None and int(learnt[1].replace(",", "")) > 300
    assert re.search(r"Of 12 predictions \d+ lie within", done.stdout)
    for row in re.findall(r"(?m)^What is Sundog\?\s+(\d.*)$", done.stdout):
        assert all(float(number) > 0 for number in re.findall(r"\d+\.\d", row)), row


def test_the_noise_is_what_rounds_differ_by_and_what_no_round_had_is_marked() -> None:
    """The most above the least of the same question; a simulated time outside of all rounds has a star."""
    noise_RQ, ones_RQ = np.array([[0.9], [1.0], [1.2]]), np.ones((3, 2))
    measured = RoundTimes(noise_RQ * [[3.0, 32.0]], noise_RQ * [[1.0, 1.0]])
    simulated = RoundTimes(ones_RQ * [[3.0, 50.0]], ones_RQ * [[1.1, 0.8]])
    console = Console(file=io.StringIO(), width=200)
    TimesBeside(QUESTIONS, measured, simulated).show(console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "the same first token varied by 33%, of later ones by 33%" in shown
    assert re.search(r"first\? +3\.0 \(2\.7–3\.6\) +3\.0 +1\.0 \(0\.9–1\.2\) +1\.1 *\n", shown), shown
    assert re.search(r"second\? .* 50\.0\* +1\.0 .* 0\.8\*", shown)
    assert "Of 4 predictions 2 lie within" in shown
