"""Log probabilities are those of the unmodified model, whatever sampling parameters edit its logits."""

import numpy as np
import pytest
import torch

from sundog.actors.core.params.sampling import Sampling
from sundog.runtime.sampling.logprobs import token_logprobs
from sundog.runtime.sampling.rows import SamplingRows
from sundog.runtime.sampling.sampler import Bitmasks, Sampled, sample

VOCAB_SIZE = 50


def some_logits(num_rows: int) -> torch.Tensor:
    return torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(1)) * 2


def sampled(logits_RV: torch.Tensor, requests: list[Sampling], masks: Bitmasks | None = None) -> Sampled:
    rows = SamplingRows(seed=0, eos_token_ids=(), num_rows=len(requests))
    for row, sampling in enumerate(requests):
        rows.set(row, f"r{row}", 3, sampling, (1, 2, 3))
    with torch.inference_mode():
        return sample(
            logits_RV.clone(), rows.take(np.arange(len(requests)), np.full(len(requests), 3)), masks
        )


def test_each_row_gets_as_many_as_it_asked_for() -> None:
    """The token's own, its rank, and the likeliest; a row that asked for none gets none."""
    logits_RV = some_logits(4)
    requests = [Sampling(logprobs=k, seed=k) for k in (0, 1, 7)] + [Sampling()]
    result = sampled(logits_RV, requests)
    assert set(result.logprobs) == {0, 1, 2}
    for row, found in result.logprobs.items():
        logprob_V = logits_RV[row].log_softmax(-1)
        assert found.token_id == result.tokens[row]
        assert found.logprob == pytest.approx(float(logprob_V[found.token_id]))
        assert found.rank == int((logprob_V > logprob_V[found.token_id]).sum()) + 1
        best = logprob_V.topk((0, 1, 7)[row])
        assert list(found.top_ids) == best.indices.tolist()
        assert found.top_logprobs == pytest.approx(best.values.tolist())


def test_what_a_request_does_to_logits_does_not_show_in_them() -> None:
    """Not temperature, penalties, biases or bans: the ruled out likeliest token still leads the list."""
    logits_RV = some_logits(1)
    best = int(logits_RV.argmax())
    changed = Sampling(
        temperature=0.7, seed=1, logprobs=3, logit_bias=((best, -100.0),), repetition_penalty=2.0, min_p=0.2
    )
    found = sampled(logits_RV, [changed]).logprobs[0]
    assert found.token_id != best and found.top_ids[0] == best
    assert found.top_logprobs == pytest.approx(logits_RV[0].log_softmax(-1).topk(3).values.tolist())


def test_a_row_without_a_token_has_no_log_probabilities() -> None:
    logits_RV = some_logits(2)
    logits_RV[0, 3] = float("nan")
    result = sampled(logits_RV, [Sampling(logprobs=1), Sampling(logprobs=1)])
    assert set(result.failed) == {0} and set(result.logprobs) == {1}


def test_many_rows_are_looked_at_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts give what all rows together give."""
    logits_NV = some_logits(9)
    whole = token_logprobs(logits_NV, range(9), [2] * 9)
    monkeypatch.setattr("sundog.runtime.sampling.logprobs.MOST_LOGITS", 2 * VOCAB_SIZE)
    assert token_logprobs(logits_NV, range(9), [2] * 9) == whole


@pytest.mark.parametrize("k", [1, 3, 5, 40, 50, 60])
def test_equals_stand_by_their_numbers_whatever_others_ask_for(k: int) -> None:
    """Those that a mask rules out are equal, too; numbers that are none end nothing."""
    logits_V = torch.arange(VOCAB_SIZE).remainder(4).float()
    logits_V[::7] = -torch.inf
    want = sorted(range(VOCAB_SIZE), key=lambda token: (-float(logits_V[token]), token))[:k]
    for beside in (0, k, 17, 50):
        rows_RV = torch.stack([logits_V, torch.full_like(logits_V, torch.nan)])
        found, nothing = token_logprobs(rows_RV, [3, 3], [k, beside])
        assert list(found.top_ids) == want and len(found.top_logprobs) == len(want)
        assert len(nothing.top_ids) == len(nothing.top_logprobs) == min(beside, VOCAB_SIZE)


def test_a_request_may_ask_for_more_than_there_are_tokens() -> None:
    found = sampled(some_logits(1), [Sampling(logprobs=1000)]).logprobs[0]
    assert len(found.top_ids) == VOCAB_SIZE


def words(*allowed: set[int]) -> np.ndarray:
    """Tokens as bits, 32 a word, the lowest first."""
    bits_MW = np.zeros((len(allowed), -(-VOCAB_SIZE // 32)), np.uint32)
    for row, tokens in enumerate(allowed):
        for token in tokens:
            bits_MW[row, token // 32] |= np.uint32(1 << token % 32)
    return bits_MW.view(np.int32)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_rules_out_what_it_does_not_name(temperature: float) -> None:
    """Of its own row alone, and before log probabilities are taken."""
    logits_RV = some_logits(3)
    request = Sampling(temperature=temperature, seed=1, logprobs=1)
    masks = Bitmasks(np.array([0, 2]), words({31, 32}, {VOCAB_SIZE - 1}))
    result, plain = sampled(logits_RV, [request] * 3, masks), sampled(logits_RV, [request] * 3)
    assert result.tokens[0] in (31, 32) and result.tokens[2] == VOCAB_SIZE - 1
    assert result.tokens[1] == plain.tokens[1]
    assert result.logprobs[2].logprob == pytest.approx(0.0)


def test_a_mask_of_all_rows_and_one_that_allows_nothing() -> None:
    """The row without any token left fails alone; plain rows keep their short way."""
    masks = Bitmasks(np.arange(3), words({5}, set(), {7, 8}))
    result = sampled(some_logits(3), [Sampling(temperature=0.0)] * 3, masks)
    assert set(result.failed) == {1}
    assert result.tokens[0] == 5 and result.tokens[2] in (7, 8)


def test_tokens_beyond_the_words_of_a_mask_are_ruled_out() -> None:
    """A grammar may know fewer tokens than the model has, which pads its vocabulary."""
    only = Bitmasks(np.arange(1), np.full((1, 1), -1, np.int32))
    assert sampled(torch.arange(50.0)[None], [Sampling(temperature=0.0)], only).tokens == [31]
