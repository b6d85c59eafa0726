"""`sundog demo`: the page that people see first."""

import io
import re

import numpy as np
from rich.console import Console

from sundog.commands.demo.times import RoundTimes, TimesBeside
from tests.sundog.test_runs import sundog

QUESTIONS = ("first?", "second?")


def test_the_simulation_agrees_with_the_live_run_it_was_not_fitted_to() -> None:
    """Batches and answers come first, then times; what steps take was learnt from other questions."""
    done = sundog("demo")
    assert done.returncode == 0, done.stdout + done.stderr
    exact = re.search(r"formed the same\s+(\d+)\s+batches", done.stdout)
    assert exact is not None and int(exact[1]) > 300
    assert "36 of 36 answers came out token for token" in done.stdout
    assert exact.end() < done.stdout.index("first tokens, ms") < done.stdout.index("later tokens, ms")
    learnt = re.search(r"fitted to ([\d,]+) steps of other questions", done.stdout)
    assert learnt is not None and int(learnt[1].replace(",", "")) > 300
    assert re.search(r"\d+ of 12 simulated times are within", done.stdout)
    for row in re.findall(r"(?m)^What is Sundog\?\s+(\d.*)$", done.stdout):
        assert all(float(number) > 0 for number in re.findall(r"\d+\.\d", row)), row


def beside(simulated: RoundTimes) -> TimesBeside:
    """Three rounds of two questions, of which the second waits, and a simulation of them."""
    noise_RQ = np.array([[0.9], [1.0], [1.2]])
    measured = RoundTimes(noise_RQ * [[1.0, 30.0]], noise_RQ * [[2.0, 2.0]], noise_RQ * [[1.0, 1.0]])
    return TimesBeside(QUESTIONS, measured, simulated, measured.first_RQ + 1.5)


def test_a_simulated_time_that_no_round_had_has_a_reason() -> None:
    """The part of it that is off most is named with both times; what is within the rounds needs none."""
    ones_RQ = np.ones((3, 2))
    assert not list(beside(RoundTimes(ones_RQ * [[1.0, 31.0]], 2 * ones_RQ, ones_RQ)).reasons())
    (late,) = beside(RoundTimes(ones_RQ * [[1.0, 50.0]], 2 * ones_RQ, ones_RQ)).reasons()
    assert late.startswith("second? Queue:") and "30.0 ms, and 50.0" in late
    (long,) = beside(RoundTimes(ones_RQ * [[1.0, 30.0]], ones_RQ * [[7.0, 2.0]], ones_RQ)).reasons()
    assert long.startswith("first? Prefill:") and "2.0 ms, and the simulation says 7.0" in long
    slow = list(beside(RoundTimes(ones_RQ * [[1.0, 30.0]], 2 * ones_RQ, 2 * ones_RQ)).reasons())
    assert len(slow) == 1 and slow[0].startswith("Later tokens:") and "0.50 times" in slow[0]


def test_the_noise_is_what_rounds_differ_by() -> None:
    """The most above the least of the same question, and the host is what the engine had no part in."""
    console = Console(file=io.StringIO(), width=200)
    ones_RQ = np.ones((3, 2))
    beside(RoundTimes(ones_RQ * [[1.0, 50.0]], 2 * ones_RQ, ones_RQ)).show(console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "the same first token differs by 33% and later ones by 33%" in shown
    assert re.search(r"first\? +4\.5 +1\.5 +1\.0 +2\.0 +3\.0 \(2\.7–3\.6\) +3\.0 *\n", shown), shown
    assert re.search(r"second\? .* 52\.0\*", shown) and "3 of 4 simulated times are within" in shown
