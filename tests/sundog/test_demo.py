"""`sundog demo`: the first page that users see."""

import io
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from sundog.actors.config import EngineConfig
from sundog.actors.config.hop_costs import HopCosts
from sundog.commands.demo import page
from sundog.commands.demo.practice import learn
from sundog.commands.demo.times import RoundTimes, TimesBeside, _others
from sundog.sim.cost.calibrated import Calibrated
from sundog.sim.cost.work import StepWork
from sundog.sim.record.journal import Journal, Observation, observations
from sundog.sim.replay import replay
from sundog.sim.trace.record import TraceRequest
from tests.sundog.test_runs import sundog

QUESTIONS = ("first?", "second?")


@pytest.mark.long(reason="runs the whole demo")
def test_the_simulation_agrees_with_the_live_run_it_was_not_fitted_to() -> None:
    """Batches and answers come first, then times; what steps take was learnt from other questions."""
    done = sundog("demo")
    assert done.returncode == 0, done.stdout + done.stderr
    exact = re.search(r"formed the same\s+(\d+)\s+batches", done.stdout)
    assert exact is not None and int(exact[1]) > 300
    assert "60 of 60 answers came out token for token" in done.stdout
    assert exact.end() < done.stdout.index("milliseconds") < done.stdout.index("within the machine's noise")
    learnt = re.search(r"fitted to ([\d,]+) steps of other questions", done.stdout)
    assert learnt is not None and int(learnt[1].replace(",", "")) > 300
    assert re.search(r"Of 12 predictions \d+ lie within", done.stdout)
    for row in re.findall(r"(?m)^What is Sundog\?\s+(\d.*)$", done.stdout):
        assert all(float(number) > 0 for number in re.findall(r"\d+\.\d", row)), row


def observed(*steps: tuple[int, int, float]) -> list[Observation]:
    """Steps one after another: their decodes, the tokens of a chunk, and milliseconds."""
    works = [StepWork(decodes, 20 * decodes, ((chunk, 0),) if chunk else ()) for decodes, chunk, _ in steps]
    return [Observation(n, work, steps[n][2] / 1e3) for n, work in enumerate(works)]


def test_a_step_costs_the_median_of_the_means_of_rounds() -> None:
    """By hand: steps of two decodes take 2 ms in two rounds, and 9 in a disturbed one.

    A mean of all is 4.3 ms, which no median of rounds shows. In a round the mean counts: one decode takes 1
    and 4 ms, which are 2.5 for a token in the mean.
    """
    quiet = observed((0, 9, 3.0), (1, 0, 1.0), (1, 0, 4.0), (2, 0, 2.0))
    loud = observed((0, 9, 8.0), (1, 0, 9.0), (1, 0, 9.0), (2, 0, 9.0))
    cost = learn([quiet, loud, quiet])
    assert {kind: 1e3 * seconds for kind, seconds in cost.seconds.items()} == {
        (0, True): 3.0,
        (1, False): 2.5,
        (2, False): 2.0,
    }
    assert cost.step_s(StepWork(2, 500)) == 0.002 and cost.run_s(StepWork(1, 9), 3).tolist() == [0.0025] * 3
    assert cost.step_s(StepWork(0, 0)) == 0.0
    # Three decodes were not practised: they cost what a line through all steps says.
    assert cost.step_s(StepWork(3, 60)) == cost.rest.step_s(StepWork(3, 60)) > 0


def test_an_arrival_is_charged_to_the_prompt_as_far_as_its_request_waited_for_it() -> None:
    """By hand: decodes take 1 ms alone, and 1.9 while a request arrives, which then waits for 0.8.

    In a simulation it waits for 0.5, so its chunk, which takes 2 ms, costs 2.3. The other 0.6 are of the
    three steps of one decode, of which each costs 1.2. All steps take as long together as they took.
    """
    round_ = observed((0, 9, 3.0), (1, 0, 1.0), (1, 0, 1.0), (1, 0, 1.9), (1, 9, 2.0), (2, 0, 1.2))
    cost = learn([round_], {4: 0.0008})
    assert cost.step_s(StepWork(1, 20)) == pytest.approx(0.0012)
    assert cost.step_s(StepWork(1, 20, ((9, 0),))) == pytest.approx(0.0023)
    assert sum(cost.step_s(step.work) for step in round_) == pytest.approx(
        sum(step.seconds for step in round_)
    )


def test_a_wait_is_that_of_a_request_that_comes_while_a_step_runs() -> None:
    """By hand: steps take 4 ms; `b` comes in the third, 1 ms before its end, and `c` waits for a slot."""
    cost = Calibrated(0.004, 0.0, per_context_token=0.0, per_decode=0.0, per_prefill_pair=0.0)
    limits = replace(page.LIMITS, max_num_seqs=2, async_scheduling=False)
    journal = Journal()
    trace = [TraceRequest(name, when_s, 8, 9) for name, when_s in (("a", 0.0), ("b", 0.011), ("c", 0.0131))]
    config = EngineConfig(limits, decode_runs=False)
    replay(trace, config, cost, page.CAPACITY, listeners=[journal])
    assert page.waits_s(journal) == {4: pytest.approx(0.001)}


def test_a_step_behind_a_pause_counts_from_the_arrival_that_it_answers() -> None:
    """By hand: two requests, a minute apart, take 2 ms to the scheduler each, and 4 ms a step.

    First steps take 4 ms from their begin, and 6 from the arrival; the others 4 either way.
    """
    cost = Calibrated(0.004, 0.0, per_context_token=0.0, per_decode=0.0, per_prefill_pair=0.0)
    config = EngineConfig(page.LIMITS, hops=HopCosts(submit=0.002), decode_runs=False)
    journal = Journal()
    trace = [TraceRequest(name, when_s, 8, 3) for name, when_s in (("a", 0.0), ("b", 60.0))]
    replay(trace, config, cost, page.CAPACITY, listeners=[journal])
    arrivals_s = {submit.request_id: submit.arrival_s for submit in journal.submits}
    for known, first_s in ((None, 0.004), (arrivals_s, 0.006)):
        seconds = [step.seconds for step in observations(journal.outputs, known)]
        assert seconds == pytest.approx([first_s, 0.004, 0.004] * 2, abs=1e-7)


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
    # 50 ms where 32 were measured are 56 % more, 0.8 where 1.0 was is a fifth less.
    assert "Of 4 predictions 2 lie within the machine's noise; the others are 20% low to 56% high." in shown


def test_a_prediction_outside_of_the_noise_is_told_by_how_much() -> None:
    assert [_others(each) for each in ([], [-0.29], [0.06, 0.23])] == [
        "",
        "; the other is 29% low",
        "; the others are 6% high to 23% high",
    ]
