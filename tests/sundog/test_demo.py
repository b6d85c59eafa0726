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
from sundog.commands.demo.practice import ArrivalPace, Met, PractisedCost, learn
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


def test_an_arrival_lengthens_the_step_that_it_meets() -> None:
    """By hand: decodes take 1 ms alone, and 1.9 while a request arrives, which then waits for 0.8.

    So an arrival takes 0.9. A request waits for half a usual step and for what is left of its arrival: that
    is 0.3, and 0.6 are over when it reaches the engine. All steps take as long together as they took.
    """
    round_ = observed((0, 9, 3.0), (1, 0, 1.0), (1, 0, 1.0), (1, 0, 1.9), (1, 9, 2.0), (2, 0, 1.2))
    cost = learn([round_], {3: Met(1, 0.0008)})
    assert (cost.arrival_s, cost.lead_s) == (pytest.approx(0.0009), pytest.approx(0.0006))
    assert cost.step_s(StepWork(1, 20)) == pytest.approx(0.001)
    assert cost.step_s(StepWork(1, 20, ((9, 0),))) == pytest.approx(0.002)
    assert sum(cost.step_s(step.work) for step in round_) + cost.arrival_s == pytest.approx(
        sum(step.seconds for step in round_)
    )


@pytest.mark.parametrize(
    ("met", "arrival_s", "lead_s"),
    [
        ({}, 0.0, 0.0),
        ({4: Met(1, 0.0)}, 0.0, 0.0),  # no step of one decode and a chunk goes without an arrival
        ({3: Met(2, None)}, 0.00045, 0.0),  # nobody says when they came: all of it is behind
        ({3: Met(1, 0.0002)}, 0.0009, 0.0009),  # shorter than half a step: all of it is over
        ({2: Met(1, 0.009)}, 0.0, 0.0),  # the step that was met is shorter than the usual ones
    ],
)
def test_an_arrival_takes_between_nothing_and_what_a_step_is_longer(
    met: dict[int, Met], arrival_s: float, lead_s: float
) -> None:
    round_ = observed((0, 9, 3.0), (1, 0, 1.0), (1, 0, 1.0), (1, 0, 1.9), (1, 9, 2.0), (2, 0, 1.2))
    cost = learn([round_], met)
    assert (cost.arrival_s, cost.lead_s) == (pytest.approx(arrival_s), pytest.approx(lead_s))


def test_steps_end_later_by_the_arrivals_that_begin_in_them() -> None:
    """By hand: a step takes 2 ms and an arrival 1, of which a half is over at the engine.

    Requests reach it at 0.7, 2.4 and 6.1 ms, so their reading begins at 0.2, 1.9 and 5.6: two in the first
    step, which ends at 4 ms, and one in the second, which ends at 7.
    """
    rest = Calibrated(0.002, 0.0, per_context_token=0.0, per_decode=0.0, per_prefill_pair=0.0)
    cost = PractisedCost({(1, False): 0.002}, rest, arrival_s=0.001, lead_s=0.0005)
    pace = ArrivalPace(cost, [0.0024, 0.0007, 0.0061])
    ends_s = pace.end_times_s(StepWork(1, 20), 3, 0.0)
    assert ends_s == pytest.approx([0.004, 0.007, 0.009], abs=2e-9)
    # One by one, or from the middle on, steps end at the same ticks: no arrival counts twice.
    begin_s, singly = 0.0, []
    for _ in range(3):
        begin_s = pace.end_times_s(StepWork(1, 20), 1, begin_s)[0]
        singly.append(begin_s)
    assert singly == ends_s and pace.end_times_s(StepWork(1, 20), 2, ends_s[0]) == ends_s[1:]


def test_requests_meet_the_step_that_runs_when_they_come() -> None:
    """By hand: steps take 4 ms; `b` comes in the third, 1 ms before its end, and `c`, which waits for a slot,
    in the fourth; `d` comes to an idle engine.
    """
    cost = Calibrated(0.004, 0.0, per_context_token=0.0, per_decode=0.0, per_prefill_pair=0.0)
    limits = replace(page.LIMITS, max_num_seqs=2, async_scheduling=False)
    journal = Journal()
    times = (("a", 0.0), ("b", 0.011), ("c", 0.0131), ("d", 9.0))
    trace = [TraceRequest(name, when_s, 8, 9) for name, when_s in times]
    config = EngineConfig(limits, decode_runs=False)
    replay(trace, config, cost, page.CAPACITY, listeners=[journal])
    assert page.meetings(journal) == {3: Met(1, pytest.approx(0.001)), 4: Met(1, None)}


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
