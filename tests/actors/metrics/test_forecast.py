"""Forecasts are ranges sampled from observed lengths, and scored against the outcomes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from sundog.actors.kernel.actor import Actor
from sundog.actors.messages import Heard, Sampling, StepOutput, Submit
from sundog.actors.metrics.forecast import (
    LEAST,
    MOST,
    NUM_DRAWS,
    Accuracy,
    AnswerLengths,
    FirstToken,
    Known,
    SeenLengths,
    look_ahead,
)
from sundog.actors.metrics.measured import Measured, Recent
from sundog.actors.metrics.metrics import Metrics
from sundog.actors.metrics.snapshot import waiting_in_order
from sundog.builds.simulated import deploy
from sundog.options.engine import EngineOptions
from sundog.options.simulation import TargetOptions
from sundog.sim.ahead import Ahead
from sundog.sim.cost.calibrated import Calibrated
from sundog.sim.replay import replay
from sundog.sim.trace.record import TraceRequest
from sundog.sim.workload.distributions import LogNormal, Poisson
from sundog.sim.workload.spec import Workload

SHARES = (0.5, LEAST, MOST)


def measured(num_tokens: int, name: str = "a", predicted: int | None = None, **fields: Any) -> Measured:
    """A request that has this many tokens."""
    request = Measured(Submit(name, 0.0, 4, 1000, sampling=Sampling(**fields), predicted_tokens=predicted))
    request.num_tokens = num_tokens
    return request


def lengths(
    stopped: Sequence[int] = (), cut: Sequence[int] = (), running: Sequence[int] = ()
) -> AnswerLengths:
    """What is known after these have stopped and have been cut, while these run."""
    return AnswerLengths(SeenLengths(tuple(stopped), tuple(cut), tuple(running)))


def test_before_any_has_stopped_an_answer_goes_on_for_as_long_as_it_has() -> None:
    """One in two does, and one in ten for nine times as long; those that were cut go on to the limit."""
    assert [lengths().remaining(40, 1000, share) for share in SHARES] == [40, 4, 360]
    assert lengths().remaining(40, 7, 0.5) == 7, "never more than the limit"
    assert lengths().remaining(0, 1000, 0.5) == 16
    assert lengths(running=[100, 200]).remaining(0, 1000, 0.5) == 300
    assert lengths(cut=[50]).remaining(10, 1000, 0.5) == 1000


def test_what_is_expected_is_the_rest_of_those_that_were_longer() -> None:
    """Quantiles of what the longer ones had beyond that point; beyond the longest, at the mean rate."""
    known = lengths(stopped=[10, 20, 30, 40])
    assert [known.remaining(0, 1000, share) for share in SHARES] == [20, 10, 40]
    assert [known.remaining(20, 1000, share) for share in SHARES] == [10, 10, 20]
    assert known.remaining(90, 1000, 0.5) == 17, "25 tokens on average, half of them by 17"


def test_those_that_still_run_are_longer_than_they_are() -> None:
    """A dozen short answers say little about sixty that have long outlived them."""
    known = lengths(stopped=[10] * 12, running=[200] * 60)
    assert known.remaining(200, 1000, 0.5) == 700, "one stops in about 1,000 tokens"
    low, middle, high = (known.remaining(0, 10_000, share) for share in (LEAST, 0.5, MOST))
    assert low == 10 and 500 < middle < high


def test_a_length_that_nothing_but_the_limit_ends_is_known_and_no_observation() -> None:
    """A stop string may end it sooner; what a request predicts of itself is taken while it can be true."""
    assert Known.of(measured(100, ignore_eos=True)).num_expected_tokens == 900
    assert not Known.of(measured(100, ignore_eos=True)).is_drawn
    assert Known.of(measured(0, ignore_eos=True, stop=("x",))).is_drawn
    said = Known.of(measured(100, predicted=150))
    assert said.num_expected_tokens == 50 and not said.is_drawn
    assert Known.of(measured(100, predicted=90)).is_drawn
    recent = Recent()
    recent.ended.append((measured(1000, ignore_eos=True), "length", 1.0))
    assert SeenLengths.of(recent, [measured(7), measured(9, ignore_eos=True)]) == ((), (), (7,))


def test_draws_are_of_what_was_seen_and_as_many() -> None:
    """Some several times and others not at all."""
    seen = SeenLengths((1, 2, 3, 4, 5, 6), (20,), (30, 40))
    drawn = seen.again(Random(1))
    assert sum(map(len, drawn)) == 9 and drawn != seen
    assert all(set(some) <= set(each) for some, each in zip(drawn, seen, strict=True))


class LastToEnd:
    """A forecast in which a waiting request begins after all the tokens that running ones bring."""

    def __init__(self) -> None:
        self.num_runs = 0

    def first_tokens_s(
        self, replica: int, running: Sequence[Known], waiting: Sequence[Known]
    ) -> Mapping[str, float]:
        self.num_runs += 1
        return {each.request_id: float(sum(k.num_expected_tokens for k in running)) for each in waiting}


def test_ranges_follow_from_draws_and_a_known_length_has_none() -> None:
    """Each draw is another run; if nothing has stopped yet, all answers of a run are as long."""
    forecast, waits = LastToEnd(), Known.of(measured(0))
    seen, running = SeenLengths(tuple(range(1, 101)), (), ()), [Known.of(measured(0))] * 4
    found = look_ahead(forecast, 0, seen, running, [waits])["a"]
    assert forecast.num_runs == NUM_DRAWS and 150 < found.expected_s < 250
    assert found == look_ahead(forecast, 0, seen, running, [waits])["a"], "the same again"
    assert 100 < found.least_s < found.expected_s < found.most_s < 300, "not all are short at a time"
    cold = look_ahead(forecast, 0, SeenLengths((), (), (50,) * 4), running, [waits])["a"]
    assert cold.most_s > 8 * cold.least_s > 0
    exact, forecast = [Known.of(measured(900, ignore_eos=True))] * 4, LastToEnd()
    waits = Known.of(measured(0, ignore_eos=True))
    assert look_ahead(forecast, 0, seen, exact, [waits])["a"] == (400.0, 400.0, 400.0)
    assert forecast.num_runs == 1


def test_a_forecast_is_judged_by_the_first_token_that_came() -> None:
    """The first forecast counts, and its range held it or not; one without a token says nothing."""
    accuracy, requests = Accuracy(), {name: measured(0, name) for name in "abcd"}
    ranges = {"a": (1.1, 1.05, 2.0), "b": (1.2, 0.5, 2.0), "c": (1.3, 1.3, 1.3), "d": (9.0, 9.0, 9.0)}
    for name, request in requests.items():
        accuracy.forecast(request, FirstToken(*ranges[name]))
        accuracy.forecast(request, FirstToken(9.0, 9.0, 9.0))
    assert accuracy.judged is None
    for name in "abc":
        requests[name].first_s = 1.0
    del requests["d"]
    accuracy.settle(requests)
    accuracy.settle(requests)
    assert accuracy.judged == (3, pytest.approx(0.2), 2, 0.5)


class LooksAhead(Actor[Heard]):
    """Looks ahead each second of a simulation, as a page would, and notes what became of first forecasts.

    A simulation counts tokens; metrics are told whose they are.
    """

    def __init__(self, metrics: Metrics, ahead: Ahead) -> None:
        super().__init__("looks-ahead")
        self._metrics, self._ahead = metrics, ahead
        self._decoding: set[str] = set()
        self._next_s = 0.0
        self.accuracy = Accuracy()

    def handle(self, message: Heard) -> None:
        if not isinstance(message, StepOutput):
            return self._metrics.handle(message)
        batch = message.batch
        self._decoding -= {*batch.finished, *batch.preempted}
        sampled = {chunk.request_id for chunk in batch.chunks if chunk.samples}
        got = sampled | self._decoding.difference(batch.idle)
        self._decoding |= sampled
        self._metrics.handle(replace(message, tokens=tuple((name, 1) for name in sorted(got))))
        now_s = message.end_times_s[-1]
        self.accuracy.settle(self._metrics.requests)
        if now_s >= self._next_s:
            self._next_s = now_s + 1.0
            self._look(now_s)
        return None

    def _look(self, now_s: float) -> None:
        requests, waiting = self._metrics.requests.values(), waiting_in_order(self._metrics)
        seen = SeenLengths.of(self._metrics.recent, requests)
        running = [Known.of(request) for request in requests if request.is_running]
        found = look_ahead(self._ahead, 0, seen, running, [Known.of(request) for request in waiting])
        for request in waiting:
            if (at := found.get(request.request_id)) is not None:
                self.accuracy.forecast(request, at.less(request.arrival_s - now_s))


def test_ranges_hold_what_comes_where_lengths_are_unknown() -> None:
    """Answers of any length at a loaded server: forecasts know what has ended, and nothing of what will."""
    simulated = deploy(EngineOptions(max_num_seqs=6), TargetOptions())
    config = replace(simulated.config, decode_runs=False)
    prompt, output = (
        LogNormal(mean=mean, median=2 * mean // 3, smallest=4, largest=1000) for mean in (300, 120)
    )
    rows: list[TraceRequest] = Workload(25.0, Poisson(6.5), prompt, output).requests(seed=1)
    cost = Calibrated(0.008, 1e-5, 0.0, 0.0, 0.0)
    ahead = Ahead(config, cost)
    ahead._num_blocks = [simulated.capacity.num_blocks]
    looks = LooksAhead(Metrics(1, config.scheduler.max_model_len), ahead)
    replay(rows, config, cost, simulated.capacity, listeners=[looks])
    judged = looks.accuracy.judged
    assert judged is not None and judged.num > 60
    assert judged.median_error < 0.4, judged
    assert judged.share_held is not None and 0.6 < judged.share_held < 1.0, judged


def test_ranges_are_stretched_to_what_past_ones_should_have_been() -> None:
    """All that came were three times as far off as their ranges said; few say nothing yet."""
    accuracy, drawn = Accuracy(), FirstToken(10.0, 9.0, 12.0)
    for number in range(40):
        request = measured(0, str(number))
        accuracy.forecast(request, drawn)
        assert accuracy.stretched(drawn) == (drawn if number < 20 else (10.0, 7.0, 16.0))
        request.first_s = 16.0 if number % 2 else 7.0
        accuracy.settle({})
    assert accuracy.judged is not None and accuracy.judged.share_held == 0.5, "the latter half"
    assert accuracy.stretched(FirstToken(1.0, 0.5, 2.0)).least_s == 0.0
