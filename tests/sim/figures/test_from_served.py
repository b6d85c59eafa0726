"""The server's overhead, separated from the engine's own step times by served steps."""

import random

import pytest

from sundog.actors.core.config import ConfigError
from sundog.sim.cost.calibrated import Calibrated
from sundog.sim.cost.profile import HostShare
from sundog.sim.cost.work import StepWork
from sundog.sim.figures.fit_log import fit_host

ALONE = Calibrated(1e-3, 1e-5, 1e-8, 0.0, 1e-9)
TRUTH = HostShare(2e-4, 3e-5, 4e-4, slowdown=1.25)


def works() -> list[StepWork]:
    """Steps of up to 40 decodes, some with chunks."""
    rng = random.Random(5)
    found = []
    for num in rng.choices(range(1, 41), k=400):
        chunks = tuple((rng.randint(1, 300), 0) for _ in range(rng.choice((0, 0, 1, 2))))
        found.append(StepWork(num, 100 * num, chunks, num + len(chunks)))
    return found


def test_the_hosts_share_is_found_again() -> None:
    """By step, token and chunk, and as a slow-down of the engine itself."""
    served = TRUTH.served(ALONE)
    found = fit_host([(work, served.step_s(work)) for work in works()], ALONE)
    assert found.slowdown == pytest.approx(1.25, abs=0.01)
    for name in ("step_s", "token_s", "chunk_s"):
        assert getattr(found, name) == pytest.approx(getattr(TRUTH, name), rel=0.05)
    assert found.request_s == 0


def test_the_sum_of_all_steps_is_right_however_uneven_they_are() -> None:
    """Latencies are sums: means count, and each tenth step that takes four times as long belongs to them."""
    rng = random.Random(6)
    served = TRUTH.served(ALONE)
    steps = [(work, served.step_s(work) * (4.0 if rng.random() < 0.1 else 1.0)) for work in works()]
    host = fit_host(steps, ALONE).served(ALONE)
    assert sum(host.step_s(work) for work, _ in steps) == pytest.approx(sum(s for _, s in steps), rel=0.04)


def test_freaks_and_kinds_that_were_seen_seldom_do_not_count() -> None:
    """What is compiled at first use happens once."""
    steps = [(work, TRUTH.served(ALONE).step_s(work)) for work in works()]
    alone = fit_host(steps, ALONE)
    more = fit_host([*steps, (StepWork(3, 300, (), 3), 9.0), (StepWork(900, 900, (), 900), 7.0)], ALONE)
    assert more.step_s == pytest.approx(alone.step_s) and more.slowdown == pytest.approx(alone.slowdown)


def test_nothing_is_below_zero() -> None:
    """A server whose steps are shorter than the engine's own adds nothing."""
    steps = [(work, 0.5 * ALONE.step_s(work)) for work in works()]
    assert fit_host(steps, ALONE) == HostShare()


def test_too_few_steps_are_refused_with_a_way_out() -> None:
    """One step tells nothing."""
    with pytest.raises(ConfigError, match="too few steps ran over HTTP .* --no-http"):
        fit_host([(StepWork(1, 10, (), 1), 0.1)], ALONE)
