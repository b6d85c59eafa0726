"""Sampling: which tokens each parameter allows, and reproducibility by seed."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from sundog.actors.core.params.sampling import Sampling
from sundog.runtime.sampling.edits import Edit
from sundog.runtime.sampling.rows import SamplingRows, uniforms
from sundog.runtime.sampling.sampler import likeliest, sample

VOCAB_SIZE = 50
EOS = 7


def draw(
    logits_V: torch.Tensor,
    sampling: Sampling,
    positions: range = range(1000, 1300),
    num_prompt_tokens: int = 10,
    request_id: str = "a",
) -> list[int]:
    """Tokens at many positions of one request whose logits never change."""
    rows = SamplingRows(seed=0, eos_token_ids=(EOS,), num_rows=1)
    rows.set(0, request_id, num_prompt_tokens, sampling)
    position_R = np.array(positions)
    choices = rows.take(np.zeros(len(positions), np.int64), position_R)
    with torch.inference_mode():
        sampled = sample(logits_V.expand(len(positions), -1).clone(), choices)
    assert not sampled.failed
    return sampled.tokens


def some_logits(seed: int = 0) -> torch.Tensor:
    return torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * 2


def test_greedy_takes_the_likeliest() -> None:
    """Temperature 0 is argmax, whatever the other parameters say."""
    logits_V = some_logits()
    tokens = draw(logits_V, Sampling(temperature=0.0, top_k=5, top_p=0.1, seed=3))
    assert set(tokens) == {int(logits_V.argmax())}


NEGATIVE_NAN = torch.tensor([-1], dtype=torch.int16).view(torch.bfloat16).item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("odd", [0.0, -0.0, 9.0, math.inf, -math.inf, math.nan, NEGATIVE_NAN])
@pytest.mark.parametrize("shift", [0.0, -9.0])
def test_the_likeliest_is_torchs_own_whatever_the_numbers(
    dtype: torch.dtype, odd: float, shift: float
) -> None:
    """The first of equals; NaN where one is, of either sign, for then the row fails."""
    logits_RV = (some_logits().expand(6, -1) + shift).clamp(max=8).to(dtype).clone()
    logits_RV[1, 30], logits_RV[2, [3, 40]], logits_RV[3] = odd, odd, odd
    logits_RV[4] = logits_RV[4].round()
    if math.isnan(odd) and dtype is torch.bfloat16:
        logits_RV.view(torch.int16)[5, 17] = -1
    best_R, token_R = likeliest(logits_RV)
    expected = logits_RV.max(-1)
    assert torch.equal(best_R.nan_to_num(99.0), expected.values.nan_to_num(99.0))
    assert token_R.tolist() == expected.indices.tolist()


def test_draws_follow_the_softmax() -> None:
    """Frequencies are within four standard deviations of the weights."""
    logits_V, num_draws = some_logits(), 20_000
    tokens = draw(logits_V, Sampling(temperature=1.3), range(num_draws))
    weight_V = (logits_V / 1.3).softmax(-1).double().numpy()
    counts_V = np.bincount(tokens, minlength=VOCAB_SIZE)
    deviation_V = np.sqrt(num_draws * weight_V * (1 - weight_V))
    assert (np.abs(counts_V - num_draws * weight_V) < 4 * deviation_V + 1).all()


def test_top_k_draws_the_k_likeliest_and_all_of_them() -> None:
    logits_V = some_logits()
    tokens = draw(logits_V, Sampling(temperature=5.0, top_k=6))
    assert set(tokens) == set(logits_V.topk(6).indices.tolist())


def test_top_p_draws_the_smallest_set_that_weighs_p() -> None:
    logits_V = some_logits()
    order = logits_V.argsort(descending=True)
    sum_V = logits_V[order].softmax(-1).cumsum(-1)
    nucleus = set(order[: int((sum_V < 0.8).sum()) + 1].tolist())
    tokens = draw(logits_V, Sampling(temperature=1.0, top_p=0.8), range(5000))
    assert set(tokens) == nucleus


def test_top_p_counts_what_top_k_left() -> None:
    """The weights that `top_p` adds up are those of the `top_k` alone, as in vLLM."""
    logits_V = torch.tensor([4.0, 3.9, 3.8, *[3.7] * 40]).log()
    assert set(draw(logits_V, Sampling(top_k=3, top_p=0.5), range(500))) == {0, 1}


def test_a_tiny_top_p_leaves_the_likeliest() -> None:
    logits_V = some_logits()
    assert set(draw(logits_V, Sampling(top_p=1e-9))) == {int(logits_V.argmax())}


@pytest.mark.long(reason="computes many steps of a model", moderate=True)
def test_a_flat_nucleus_wider_than_the_first_look_is_whole() -> None:
    """Where the few likeliest tokens do not weigh `top_p`, all are looked at."""
    logits_V = torch.linspace(0.0, 0.1, 4000)
    tokens = draw(logits_V, Sampling(top_p=0.9), range(4000))
    assert min(tokens) > 300
    assert len({token for token in tokens if token < 2900}) > 1000


@pytest.mark.parametrize("flatness", [0.0, 0.1, 3.0])
def test_the_nucleus_of_many_tokens_is_that_of_sorting_them(flatness: float) -> None:
    """Rows with tokens ruled out and equal ones; nothing is kept beyond the first that weighs p."""
    from sundog.runtime.sampling.sampler import _least_kept

    torch.manual_seed(0)
    logits_RV = (torch.randn(6, 5000) * flatness).round(decimals=2)
    logits_RV[::2, torch.randperm(5000)[:2500]] = float("-inf")
    top_p_R1 = torch.tensor([0.1, 0.5, 0.9, 0.99, 1e-6, 0.7])[:, None]
    found = _least_kept(logits_RV, torch.zeros(6, 1, dtype=torch.int64), top_p_R1, 16, needs_more=True)
    values, _ = logits_RV.double().sort(-1, descending=True)
    sums = values.softmax(-1).cumsum(-1)
    assert torch.equal(found, values.gather(1, (sums < top_p_R1).sum(-1, keepdim=True)).float())


def test_equal_logits_at_the_threshold_all_stay() -> None:
    """Ties have no order that is the same in every batch, so none of them is struck out."""
    assert set(draw(torch.zeros(4), Sampling(top_k=2))) == {0, 1, 2, 3}


def test_the_same_seed_gives_the_same_tokens_in_any_batch() -> None:
    """A row's token depends on its own seed, position and logits alone."""
    sampling = Sampling(temperature=0.8, top_p=0.9, seed=5)
    others = [Sampling(), Sampling(temperature=0.0), Sampling(top_k=3), Sampling(top_p=0.3)]
    alone = draw(some_logits(), sampling, range(20, 21))
    rows = SamplingRows(seed=0, eos_token_ids=(), num_rows=5)
    for row, other in enumerate((*others, sampling)):
        rows.set(row, f"r{row}", 3, other)
    choices = rows.take(np.arange(5), np.full(5, 20))
    logits_RV = torch.stack([some_logits(seed) for seed in (1, 2, 3, 4, 0)])
    assert sample(logits_RV, choices).tokens[4:] == alone


def test_seeds_differ_and_requests_without_one_differ() -> None:
    logits_V = torch.zeros(VOCAB_SIZE)
    streams = [draw(logits_V, Sampling(seed=seed)) for seed in (0, 1, 2)]
    streams += [draw(logits_V, Sampling(), request_id=name) for name in ("a", "b")]
    assert len({tuple(stream) for stream in streams}) == 5
    assert streams[3] == draw(logits_V, Sampling(), request_id="a")


def test_min_tokens_keeps_end_and_stop_tokens_away_until_then() -> None:
    """Neither greedy nor drawn rows end before `min_tokens` outputs, and both may after."""
    logits_V = torch.full((VOCAB_SIZE,), -5.0)
    logits_V[EOS], logits_V[9], logits_V[3] = 5.0, 4.0, 1.0
    for temperature in (0.0, 0.2):
        sampling = Sampling(temperature=temperature, min_tokens=4, stop_token_ids=(9,))
        tokens = draw(logits_V, sampling, range(10, 20), num_prompt_tokens=10)
        assert set(tokens[:4]).isdisjoint({EOS, 9})
        assert set(tokens[4:]) <= {EOS, 9}


def test_tokens_of_no_weight_are_never_drawn() -> None:
    """Not even by the numbers next to 0 and to 1."""
    logits_V = torch.full((VOCAB_SIZE,), float("-inf"))
    logits_V[20:22] = 0.0
    assert set(draw(logits_V, Sampling(), range(3000))) == {20, 21}


def test_uniforms_are_uniform() -> None:
    """Mean, variance and correlation with the next are those of independent numbers in [0, 1)."""
    u = uniforms(np.full(100_000, 42, np.uint64), np.arange(100_000))
    assert u.min() >= 0 and u.max() < 1
    assert abs(u.mean() - 0.5) < 0.005 and abs(u.var() - 1 / 12) < 0.002
    assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 0.015


def mixed(bad: Sampling, logits_RV: torch.Tensor) -> tuple[dict[int, str], list[int]]:
    """Five requests side by side, the third with parameters `bad`: who failed, and the tokens."""
    kinds = [Sampling(seed=1), Sampling(temperature=0.0), bad, Sampling(top_p=0.5, seed=2), Sampling(top_k=4)]
    rows = SamplingRows(seed=0, eos_token_ids=(EOS,), num_rows=5)
    for row, sampling in enumerate(kinds):
        rows.set(row, f"r{row}", 3, sampling)
    with torch.inference_mode():
        sampled = sample(logits_RV.clone(), rows.take(np.arange(5), np.full(5, 20)))
    return sampled.failed, sampled.tokens


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_of_logits_that_are_not_numbers_fails_alone(bad: float) -> None:
    """One is enough, and the tokens of the other rows are what they were, greedy or drawn."""
    logits_RV = torch.stack([some_logits(seed) for seed in range(5)])
    for sampling in (Sampling(top_p=0.9), Sampling(temperature=0.0)):
        failed, tokens = mixed(sampling, logits_RV)
        assert not failed
        broken_RV = logits_RV.clone()
        broken_RV[2, 30] = bad
        failed, after = mixed(sampling, broken_RV)
        assert set(failed) == {2} and "no token can be chosen" in failed[2]
        assert after[:2] + after[3:] == tokens[:2] + tokens[3:]


def test_a_row_whose_every_token_is_ruled_out_fails_alone() -> None:
    logits_RV = torch.stack([some_logits(seed) for seed in range(5)])
    failed, _ = mixed(Sampling(min_tokens=40, stop_token_ids=tuple(range(VOCAB_SIZE))), logits_RV)
    assert set(failed) == {2}


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=float("nan")),
        Sampling(temperature=float("inf")),
        Sampling(temperature=-1.0),
        Sampling(top_p=float("nan")),
        Sampling(top_k="many"),  # type: ignore[arg-type]  # a mistake that only running finds
    ],
)
def test_parameters_that_cannot_be_used_fail_alone(sampling: Sampling) -> None:
    logits_RV = torch.stack([some_logits(seed) for seed in range(5)])
    _, tokens = mixed(Sampling(), logits_RV)
    failed, after = mixed(sampling, logits_RV)
    assert set(failed) == {2} and "sampling parameters cannot be used" in failed[2]
    assert after[:2] + after[3:] == tokens[:2] + tokens[3:]


def test_a_row_whose_choosing_raises_fails_alone() -> None:
    """The batch is sampled again without it."""
    logits_RV = torch.stack([some_logits(seed) for seed in range(5)])
    rows = SamplingRows(seed=0, eos_token_ids=(EOS,), num_rows=5)
    for row in range(5):
        rows.set(row, f"r{row}", 3, Sampling(min_tokens=row + 30))
    choices = rows.take(np.arange(5), np.full(5, 20))
    assert choices is not None
    expected = sample(logits_RV.clone(), choices)
    edits = list(choices.edits)
    edits[2] = (2, Edit(banned=np.array(["x"])))  # type: ignore[arg-type]  # so that it raises
    broken = replace(choices, edits=tuple(edits))
    sampled = sample(logits_RV.clone(), broken)
    assert set(sampled.failed) == {2} and not expected.failed
    assert sampled.tokens[:2] + sampled.tokens[3:] == expected.tokens[:2] + expected.tokens[3:]


@pytest.mark.parametrize("top_k", [VOCAB_SIZE, VOCAB_SIZE + 1, 2**31, 2**63, 10**30])
def test_top_k_of_the_vocabulary_or_more_is_all_tokens(top_k: int) -> None:
    logits_V = some_logits()
    assert draw(logits_V, Sampling(top_k=top_k, seed=1)) == draw(logits_V, Sampling(seed=1))


@pytest.mark.parametrize("temperature", [1e-300, 1e-5, 2e-5, 1e-3])
def test_a_tiny_temperature_takes_the_likeliest(temperature: float) -> None:
    """Also where logits divided by it are beyond what a float32 holds."""
    logits_V = some_logits() * 1e34
    assert set(draw(logits_V, Sampling(temperature=temperature))) == {int(logits_V.argmax())}


@pytest.mark.parametrize("temperature", [1e30, 1e38, 1e300])
def test_a_huge_temperature_is_flat_and_leaves_what_is_ruled_out(temperature: float) -> None:
    tokens = draw(some_logits(), Sampling(temperature=temperature, min_tokens=10**9), range(3000))
    assert set(tokens) == set(range(VOCAB_SIZE)) - {EOS}


def test_top_p_of_one_is_everything_and_of_zero_the_likeliest() -> None:
    logits_V = some_logits()
    assert draw(logits_V, Sampling(top_p=1.0, seed=1)) == draw(logits_V, Sampling(seed=1))
    assert set(draw(logits_V, Sampling(top_p=0.0))) == {int(logits_V.argmax())}


def test_end_tokens_beyond_the_vocabulary_rule_nothing_out() -> None:
    """A tokenizer may know more tokens than the model."""
    sampling = Sampling(temperature=0.0, min_tokens=5, stop_token_ids=(-1, VOCAB_SIZE, 10**25))
    assert set(draw(some_logits(), sampling, range(10, 12))) == {int(some_logits().argmax())}
