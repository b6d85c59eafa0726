"""Generated workloads: seeded, independent by stream, with the moments asked for."""

import numpy as np
import pytest

from actors.core.config import ConfigError
from sim.workload import CHAT, LogNormal, Poisson, Uniform, stream


def test_the_same_seed_gives_the_same_requests() -> None:
    """And another seed gives others."""
    assert CHAT.requests(5) == CHAT.requests(5) != CHAT.requests(6)


def test_changing_the_lengths_leaves_the_arrivals() -> None:
    """Each quantity has a stream of its own name."""
    other = Poisson(CHAT.rate_per_s, CHAT.duration_s, Uniform(1, 9), Uniform(1, 9))
    arrivals = [[r.arrival_s for r in load.requests(1)] for load in (CHAT, other)]
    assert arrivals[0] == arrivals[1]
    assert stream(1, "a").random() != stream(1, "b").random()


def test_rate_and_lengths_are_those_asked_for() -> None:
    """Means within a few standard errors, lengths within their limits."""
    load = Poisson(50.0, 400.0, LogNormal(1155, 1020, 100_000), Uniform(10, 20))
    requests = load.requests(0)
    prompts = np.array([r.num_prompt_tokens for r in requests])
    outputs = np.array([r.num_output_tokens for r in requests])
    assert len(requests) == pytest.approx(20_000, rel=0.03)
    assert prompts.mean() == pytest.approx(1155, rel=0.02)
    assert np.median(prompts) == pytest.approx(1020, rel=0.02)
    assert (outputs.min(), outputs.max()) == (10, 20)
    assert requests[0].arrival_s >= 0 and requests[-1].arrival_s < 400


def test_impossible_workloads_are_refused() -> None:
    """A rate of nothing, a median above the mean, an empty span."""
    for make in (
        lambda: Poisson(0.0, 1.0, Uniform(1, 2), Uniform(1, 2)),
        lambda: LogNormal(10, 20, 100),
        lambda: Uniform(0, 5),
        lambda: Uniform(6, 5),
    ):
        with pytest.raises(ConfigError):
            make()
