"""Scalers and their controller: Kubernetes' documented formulas, by hand, and laws over random answers."""

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, floor, inf
from types import FrameType
from typing import Any

import pytest

from sundog.actors.core.autoscaling import Controller
from sundog.actors.core.scalers import (
    SCALERS,
    ArrivalTrend,
    Attainment,
    FirstItems,
    Hpa,
    Keda,
    ScaledFleet,
    Scaler,
)
from tests.core.traces import num_cases

NOW = ScaledFleet(
    now_s=1000.0,
    every_s=15.0,
    num_up=4,
    num_starting=0,
    num_running=0,
    num_waiting=0,
    busy=0.0,
    arrivals=0,
    ttfts_s=(),
    history=(),
    asked=(),
    start_s=60.0,
)


def test_keda_takes_the_queue_over_its_target() -> None:
    """ceil(metric / target), and the replicas there are within a tenth of target x replicas."""
    assert Keda(target=10).want(replace(NOW, num_running=35, num_waiting=20)) == 6  # ceil(55 / 10)
    assert Keda(target=10).want(replace(NOW, num_running=43)) == 4  # 43 / 40 is 1.075
    assert Keda(target=10).want(replace(NOW, num_running=45)) == 5  # 45 / 40 is 1.125
    assert Keda(target=10).want(replace(NOW, num_running=37)) == 4  # 0.925
    assert Keda(target=10).want(replace(NOW, num_running=30)) == 3
    assert Keda(target=10).want(NOW) == 0


def test_hpa_multiplies_by_the_ratio_and_does_nothing_within_its_tolerance() -> None:
    """ceil(replicas x utilisation / target), and nothing within a tenth."""
    assert Hpa(target=0.5).want(replace(NOW, busy=0.9)) == 8  # ceil(4 x 1.8)
    assert Hpa(target=0.5).want(replace(NOW, busy=0.54)) == 4
    assert Hpa(target=0.5).want(replace(NOW, busy=0.2)) == 2  # ceil(4 x 0.4)


def test_hpa_takes_replicas_that_start_for_idle_ones_when_it_grows() -> None:
    """Documented: not-yet-ready pods count 0 % when it would grow, and are left out when it would shrink."""
    growing = replace(NOW, num_up=2, busy=0.9)
    assert Hpa(target=0.5).want(growing) == 4  # ceil(2 x 1.8)
    assert Hpa(target=0.5).want(replace(growing, num_starting=1)) == 4  # 0.9 x 2 / 3 / 0.5 is 1.2
    assert Hpa(target=0.5).want(replace(growing, num_starting=2)) == 4  # 0.9: turned, so nothing changes
    assert Hpa(target=0.5).want(replace(growing, num_starting=5)) == 7
    assert Hpa(target=0.5).want(replace(growing, busy=0.2, num_starting=2)) == 1  # ceil(2 x 0.4)
    assert Hpa(target=0.5).want(replace(growing, num_up=0, num_starting=3, busy=0.0)) == 3  # no metric


def test_a_forecast_follows_the_line_and_an_objective_what_was_met() -> None:
    """Arrivals grow by 15 each time; an order takes four of them."""
    rising = replace(NOW, history=(15, 30, 45), arrivals=60)
    assert ArrivalTrend(per_s=2.0).want(rising) == 4  # (60 + 4 x 15) / 15 / 2
    assert ArrivalTrend(per_s=2.0, window=1).want(rising) == 2
    assert ArrivalTrend(per_s=2.0).want(replace(rising, arrivals=0)) == 0
    assert Attainment(ttft_s=0.5).want(replace(NOW, ttfts_s=(0.1, 0.9))) == 5
    assert Attainment(ttft_s=0.5).want(replace(NOW, ttfts_s=(0.1,), busy=0.9)) == 4
    assert Attainment(ttft_s=0.5, idle=0.3).want(replace(NOW, ttfts_s=(0.1,), busy=0.2)) == 3  # 4 x 0.2 / 0.3
    assert Attainment(ttft_s=0.5).want(NOW) == 0


@dataclass(frozen=True)
class Listed(Scaler):
    """Answers from a list, one after the other."""

    answers: tuple[int, ...]
    up_s: float = 0.0
    down_s: float = 0.0
    up_pods: float = inf
    up_percent: float = inf
    up_period_s: float = 15.0
    down_pods: float = inf
    down_percent: float = inf
    down_period_s: float = 15.0

    def want(self, fleet: ScaledFleet) -> int:
        return self.answers[len(fleet.asked)]


def decided(scaler: Scaler, num_questions: int, fewest: int = 1, most: int = 10) -> list[int]:
    """The replicas after each question, 15 s apart."""
    controller, count, found = Controller(scaler, fewest, most), fewest, []
    for number in range(1, num_questions + 1):
        fleet = replace(NOW, now_s=15.0 * number, num_up=count, asked=controller.asked)
        found.append(count := controller.decide(fleet))
    return found


def test_the_windows_are_over_answers_and_not_over_what_was_held() -> None:
    """By hand: 8 is wanted at 30 s and counts to 75 s, three questions later; then 2, then 1."""
    answers = (3, 8, 2, 2, 1, 1, 1, 1, 1, 1)
    held = decided(Listed(answers, down_s=45), 10)
    assert held == [3, 8, 8, 8, 8, 2, 2, 1, 1, 1]
    # To grow, 8 has to be the least of 30 s: it is only at the third question after its first.
    assert decided(Listed((1, 8, 8, 8, 8), up_s=30), 5) == [1, 1, 1, 8, 8]


def test_policies_bound_a_change_by_the_greater_of_pods_and_percent_in_a_period() -> None:
    """Kubernetes' defaults for growing, 4 pods or 100 % in 15 s: 1, 5, 10, 20; by 60 s they are far fewer."""
    always = (100,) * 8
    fast = Listed(always, up_pods=4, up_percent=100)
    assert decided(fast, 5, most=64) == [5, 10, 20, 40, 64]
    slow = replace(fast, up_period_s=60.0)
    assert decided(slow, 6, most=64) == [5, 5, 5, 5, 10, 10]
    # Shrinking by a tenth of what there was a period ago: 10 x 0.9, 9 x 0.9 rounded down, ...
    falling = Listed((10, 0, 0, 0), down_percent=10)
    assert decided(falling, 4) == [10, 9, 8, 7]
    assert decided(replace(falling, down_pods=3), 4) == [10, 7, 4, 1]


def reference(scaler: Any, answers: list[int], fewest: int, most: int) -> list[int]:
    """Kubernetes' stabilizeRecommendationWithBehaviors and its rates, naively, over whole histories."""
    raw: list[tuple[float, int]] = []
    events: list[tuple[float, int]] = []
    count, found = fewest, []
    for number, answer in enumerate(answers, 1):
        now_s = 15.0 * number
        raw.append((now_s, answer))
        up = min(value for time_s, value in raw if time_s >= now_s - scaler.up_s)
        down = max(value for time_s, value in raw if time_s >= now_s - scaler.down_s)
        wanted = count
        wanted = max(wanted, up)
        wanted = min(wanted, down)

        def began(period_s: float, now_s: float = now_s, count: int = count) -> int:
            return count - sum(change for time_s, change in events if time_s > now_s - period_s)

        if wanted > count and (scaler.up_pods < inf or scaler.up_percent < inf):
            start = began(scaler.up_period_s)
            proposals = [start + scaler.up_pods] if scaler.up_pods < inf else []
            if scaler.up_percent < inf:
                proposals.append(ceil(start * (1 + scaler.up_percent / 100)))
            wanted = min(wanted, max(count, *proposals))
        elif wanted < count and (scaler.down_pods < inf or scaler.down_percent < inf):
            start = began(scaler.down_period_s)
            proposals = [start - scaler.down_pods] if scaler.down_pods < inf else []
            if scaler.down_percent < inf:
                proposals.append(floor(start * (1 - scaler.down_percent / 100)))
            wanted = max(wanted, min(count, *proposals))
        wanted = min(max(wanted, fewest), most)
        if wanted != count:
            events.append((now_s, wanted - count))
        found.append(count := wanted)
    return found


def test_the_controller_decides_as_the_documented_algorithm() -> None:
    """Any answers, windows and policies: what naive sums over whole histories give."""
    for seed in range(num_cases(1000)):
        rng = random.Random(seed)
        scaler = Listed(
            tuple(rng.choice([0, 1, 2, 3, 5, 8, 20]) for _ in range(40)),
            up_s=rng.choice([0.0, 0.0, 15.0, 40.0]),
            down_s=rng.choice([0.0, 10.0, 15.0, 60.0, 300.0]),
            up_pods=rng.choice([inf, 1, 4]),
            up_percent=rng.choice([inf, 10, 100]),
            up_period_s=rng.choice([15.0, 40.0, 60.0]),
            down_pods=rng.choice([inf, 1, 4]),
            down_percent=rng.choice([inf, 10, 100]),
            down_period_s=rng.choice([15.0, 60.0]),
        )
        fewest, most = rng.choice([1, 2]), rng.choice([2, 8, 16])
        assert decided(scaler, 40, fewest, most) == reference(scaler, list(scaler.answers), fewest, most), (
            seed
        )


def loaded(rng: random.Random, num_up: int, num_starting: int) -> ScaledFleet:
    """Any facts of a fleet under any load."""
    ttfts_s = tuple(rng.choice([0.01, 0.3, 2.0]) for _ in range(rng.choice([0, 0, 1, 20])))
    return replace(
        NOW,
        num_up=num_up,
        num_starting=num_starting,
        num_running=rng.choice([0, 3, 200]),
        num_waiting=rng.choice([0, 0, 1, 100]),
        busy=rng.choice([0.0, 0.1, 0.5, 1.0]),
        arrivals=rng.choice([0, 1, 30, 500]),
        ttfts_s=ttfts_s,
    )


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("name", SCALERS)
def test_after_demand_ends_every_scaler_is_at_the_fewest_within_its_window_and_two_questions(
    name: str,
) -> None:
    """Whatever the load was: the first question may still see its end, and its answer counts for `down_s`."""
    for seed in range(num_cases(250)):
        rng = random.Random(f"{name}-{seed}")
        every_s, down_s = rng.choice([5.0, 15.0, 31.0]), rng.choice([0.0, 10.0, 60.0, 300.0])
        fewest, most, start_s = rng.choice([1, 3]), rng.choice([3, 16]), rng.choice([0.0, 20.0, 200.0])
        make: Callable[..., Scaler] = SCALERS[name]
        controller = Controller(make(down_s=down_s), fewest, most)
        history: list[int] = []
        ups: list[float] = [0.0] * fewest
        num_loaded = rng.randrange(1, 60)
        ended_s = every_s * num_loaded - rng.uniform(0, every_s)
        for number in range(1, num_loaded + int((down_s + 2 * every_s) / every_s) + 30):
            now_s = number * every_s
            num_up = sum(up_s <= now_s for up_s in ups)
            fleet = loaded(rng, num_up, len(ups) - num_up)
            if number > num_loaded:
                fleet = replace(fleet, num_running=0, num_waiting=0, busy=0.0, arrivals=0, ttfts_s=())
            fleet = replace(
                fleet,
                now_s=now_s,
                every_s=every_s,
                start_s=start_s,
                history=FirstItems(history),
                asked=controller.asked,
            )
            wanted = controller.decide(fleet)
            ups = ups[:wanted] + [now_s + start_s] * (wanted - len(ups))
            history.append(fleet.arrivals)
            assert fewest <= wanted <= most
            if now_s >= ended_s + down_s + 2 * every_s:
                assert wanted == fewest, (seed, now_s, ended_s)


def opcodes_of(call: Callable[[], object]) -> int:
    """The bytecodes that a call executes in the scalers and their controller."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.endswith(("scalers.py", "autoscaling.py")):
            return None
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("name", SCALERS)
def test_a_question_costs_as_much_after_thousands_as_after_a_few(name: str) -> None:
    """Bytecodes, and the bytes of what the scaler is shown."""
    controller, history, costs, sizes = Controller(SCALERS[name](), 1, 8), list[int](), [], []
    for number in range(1, 4001):
        fleet = replace(
            NOW,
            now_s=15.0 * number,
            num_up=1,
            arrivals=number % 3,
            num_running=number % 5,
            history=FirstItems(history),
            asked=controller.asked,
        )
        if number % 1000 in range(100, 130):
            costs.append(opcodes_of(lambda fleet=fleet: controller.decide(fleet)))  # type: ignore[misc]
            sizes.append(sys.getsizeof(fleet.asked) + sys.getsizeof(fleet.history))
        else:
            controller.decide(fleet)
        history.append(fleet.arrivals)
    early, late = costs[:30], costs[-30:]
    assert min(early) > 0 and sum(late) <= 1.05 * sum(early) and len(set(sizes)) == 1


def test_what_a_scaler_is_shown_of_the_past_never_changes() -> None:
    """A sequence of what there was, whatever is added later; it cannot be read beyond."""
    items = [1, 2, 3]
    past = FirstItems(items)
    items.append(4)
    assert list(past) == [1, 2, 3] and past[-2:] == [2, 3] and past[-1] == 3 and len(past) == 3
    assert [*FirstItems(items)] == items and all(a < b for a, b in pairwise(FirstItems(items)))
    with pytest.raises(IndexError):
        past[3]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"down_s": -1.0}, "down_s is -1.0: it must be a number at least 0 and finite"),
        ({"up_s": inf}, "up_s is inf"),
        ({"up_pods": 0}, "up_pods is 0: it must be a number above 0"),
        ({"down_percent": -5.0}, "down_percent is -5.0"),
        ({"down_period_s": 0.0}, "down_period_s is 0.0"),
    ],
)
@pytest.mark.parametrize("name", SCALERS)
def test_a_window_or_policy_that_cannot_be_is_refused(
    name: str, fields: dict[str, float], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        SCALERS[name](**fields)
