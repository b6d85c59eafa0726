"""Timing of an emulated GPU: host lateness is caught up, or counted and reported."""

import logging
from itertools import pairwise

import pytest
import trio

from sundog.actors.core.batch import Admission, Batch, Chunk
from sundog.actors.core.params.sampling import Sampling
from sundog.actors.kernel.clock import now_s
from sundog.actors.metrics.totals import Lag
from sundog.sim.backend import CostBackend
from sundog.sim.clock import run_virtual
from sundog.sim.cost.work import StepWork
from sundog.sim.emulation.clock import ScaledClock
from sundog.sim.emulation.pace import LivePace
from sundog.sim.oracle import Oracle
from tests.sim.toy import CAPACITY, COST

DECODE_S = COST.step_s(StepWork(1, 6, (), 1))


def entering(name: str) -> tuple[Admission, ...]:
    return (Admission(name, 5, 5, 0, (), None, Sampling()),)


def first(name: str, step: int = 1, finished: tuple[str, ...] = ()) -> Batch:
    return Batch(step, admitted=entering(name), chunks=(Chunk(name, 5, True),), finished=finished)


def emulated(lag: Lag) -> CostBackend:
    return CostBackend(LivePace(COST, 0, lag), Oracle(), CAPACITY)


def test_a_step_that_begins_late_catches_up() -> None:
    """Asked for a millisecond after the last one, it ends as if it had been asked for at once."""
    lag = Lag(1)

    async def main() -> None:
        backend = emulated(lag)
        first_s = (await backend.execute(first("a"))).end_times_s[0]
        await trio.sleep(0.001)
        assert now_s() > first_s
        second_s = (await backend.execute(Batch(2, num_decodes=1))).end_times_s[0]
        assert second_s - first_s == pytest.approx(DECODE_S, abs=1e-6)

    run_virtual(main)
    assert lag.lost_s == [0.0]


def test_no_step_begins_before_the_last_one_has_ended() -> None:
    """Timers are set half a millisecond early, and steps are not shorter for it."""

    async def main() -> None:
        backend = emulated(Lag(1))
        ends_s = [(await backend.execute(first("a"))).end_times_s[0]]
        ends_s += [(await backend.execute(Batch(n, num_decodes=1))).end_times_s[0] for n in range(2, 9)]
        gaps_s = [later - sooner for sooner, later in pairwise(ends_s)]
        assert gaps_s == pytest.approx([DECODE_S] * 7, rel=0.01)

    run_virtual(main)


def test_what_cannot_be_caught_up_is_lost_and_no_step_ends_before_its_requests_came() -> None:
    """After half a second's delay a continuing step ends now; after an idle time one begins now."""
    lag = Lag(1)

    async def main() -> None:
        backend = emulated(lag)
        first_s = (await backend.execute(first("a"))).end_times_s[0]
        await trio.sleep(0.5)
        asked_s = now_s()
        assert (await backend.execute(Batch(2, num_decodes=1))).end_times_s[0] == pytest.approx(asked_s)
        assert lag.lost_s[0] == pytest.approx(asked_s - first_s - 0.05, abs=1e-6)
        await trio.sleep(0.5)
        start_s = now_s()
        span_s = (await backend.execute(first("b", 3, ("a",)))).end_times_s[0] - start_s
        assert span_s == pytest.approx(COST.step_s(StepWork(0, 0, ((5, 0),), 1)), abs=1e-8)

    run_virtual(main)
    assert 0.4 < lag.lost_s[0] < 0.5
    assert lag.to_json()["lost_s"] == round(lag.lost_s[0], 6)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("late_s", [0.2, 0.0])
def test_a_server_that_cannot_keep_the_pace_says_so(late_s: float, caplog: pytest.LogCaptureFixture) -> None:
    """A line in ten seconds at most, with what to do; none where it keeps it."""

    async def main() -> None:
        backend = emulated(Lag(1))
        await backend.execute(first("a"))
        number = 2
        while now_s() < 25:
            await trio.sleep(late_s)
            await backend.execute(Batch(number, num_decodes=1))
            number += 1

    with caplog.at_level(logging.WARNING, "sundog.emulation"):
        run_virtual(main)
    assert len(caplog.records) == (2 if late_s else 0)
    for record in caplog.records:
        assert "cannot keep the pace" in record.message and "--time-scale 0." in record.message


def test_a_scaled_clock_runs_so_many_times_as_fast() -> None:
    """A deadline that is 60 s away is 0.6 s away on the wall; the past is now."""
    clock = ScaledClock(100)
    clock.start_clock()
    left_s = clock.deadline_to_sleep_time(clock.current_time() + 60)
    assert 0.5 < left_s <= 0.6
    assert clock.deadline_to_sleep_time(-1.0) == 0.0
