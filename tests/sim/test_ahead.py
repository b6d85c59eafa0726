"""Forecasts equal what the simulator itself would have done."""

import pytest

from sundog.actors.core.batch import Admission, Batch, Chunk
from sundog.actors.core.params.sampling import Sampling
from sundog.actors.messages import StepOutput
from sundog.actors.metrics.forecast import Known
from sundog.sim.ahead import Ahead
from sundog.sim.cost.calibrated import Calibrated
from tests.actors.fakes import engine_config

COST = Calibrated(step=0.01, per_token=0.001, per_context_token=0.0, per_decode=0.0, per_prefill_pair=0.0)


def known(name: str, prompt: int, tokens: int, expected: int) -> Known:
    """A request that waits if it has no tokens, and decodes otherwise."""
    return Known(name, prompt, tokens, prompt + tokens - 1 if tokens else 0, expected, tokens > 0, 0, None)


def ahead(**fields: object) -> Ahead:
    forecaster = Ahead(engine_config(**fields), COST)
    forecaster._num_blocks = [257]
    return forecaster


def test_an_idle_server_needs_one_step() -> None:
    """Of the whole prompt, if it fits into a step."""
    assert ahead().first_tokens_s(0, [], [known("a", 20, 0, 5)]) == {"a": pytest.approx(0.01 + 0.02)}


def test_a_long_prompt_needs_several() -> None:
    """32 tokens a step, the first token with the last chunk."""
    found = ahead().first_tokens_s(0, [], [known("a", 70, 0, 5)])
    assert found == {"a": pytest.approx(3 * 0.01 + 0.07)}


def test_who_waits_for_a_running_slot_waits_for_the_first_to_end() -> None:
    """One slot: nine more tokens of one request, then the prompt of the other; its own tokens are free."""
    found = ahead(max_num_seqs=1).first_tokens_s(0, [known("a", 50, 3, 9)], [known("b", 20, 0, 5)])
    assert found == {"b": pytest.approx(9 * (0.01 + 0.001) + 0.01 + 0.02)}


def test_a_prompt_half_way_goes_on_before_those_that_wait() -> None:
    """It computes at least what is left of it."""
    half = Known("a", 64, 0, 32, 5, False, 0, None)
    found = ahead(max_num_seqs=1).first_tokens_s(0, [half], [known("b", 4, 0, 5)])
    assert found["a"] < found["b"]


def test_what_can_never_be_said_is_left_out() -> None:
    """No blocks known, nothing learned, or too far ahead."""
    assert Ahead(engine_config(), COST).first_tokens_s(0, [], [known("a", 20, 0, 5)]) == {}
    unlearned = Ahead(engine_config(), None)
    unlearned._num_blocks = [257]
    assert unlearned.first_tokens_s(0, [], [known("a", 20, 0, 5)]) == {}


@pytest.mark.parametrize("slowness", [1.0, 3.0])
def test_a_machine_that_falls_behind_its_clock_is_forecast_to_stay_behind(slowness: float) -> None:
    """Steps took longer than the cost model says: those to come do, too."""
    forecaster = ahead()
    admitted = Admission("a", 10, 10, 0, (1,), None, Sampling())
    batches = [Batch(1, (admitted,), (Chunk("a", 10, True),))]
    batches += [Batch(number, num_decodes=1) for number in range(2, 40)]
    end_s = 0.0
    for batch in batches:
        start_s, end_s = end_s, end_s + slowness * (0.01 + 0.001 * (10 if batch.chunks else 1))
        forecaster.handle(StepOutput(0, batch, start_s, (end_s,), None, (), 1, 0, 200))
    assert forecaster.first_tokens_s(0, [], [known("b", 20, 0, 5)]) == {"b": pytest.approx(slowness * 0.03)}
