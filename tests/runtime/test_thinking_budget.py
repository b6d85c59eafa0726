"""Limits of reasoning tokens, token by token and combined with other parameters."""

import random

import numpy as np
import pytest
import torch

from sundog.actors.core.params.sampling import Sampling, may_draft
from sundog.runtime.sampling.choices import Choices
from sundog.runtime.sampling.rows import SamplingRows
from sundog.runtime.sampling.rules import ThinkingBudget
from sundog.runtime.sampling.sampler import sample
from tests.runtime.reference import ends_thinking

BEGIN, END, EOS, VOCAB_SIZE = 4, 5, 1, 8


def bounded(budget: int, **fields: object) -> Sampling:
    own = {"temperature": 0.0, "thinking_token_budget": budget, "thought": (BEGIN, END)}
    return Sampling(**{**own, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(40))
def test_the_end_is_forced_where_a_look_at_all_tokens_says_so(seed: int) -> None:
    """Whatever the tokens are, and wherever a preemption makes the record anew."""
    rng = random.Random(seed)
    prompt = rng.choices(range(VOCAB_SIZE), k=rng.randint(1, 12))
    sampling, outputs = bounded(rng.randint(0, 6)), list[int]()
    budget = ThinkingBudget(sampling.thinking_token_budget or 0, BEGIN, END, prompt, outputs)
    for _ in range(30):
        assert budget.forced == ends_thinking(prompt, outputs, sampling), (prompt, outputs)
        outputs.append(rng.randrange(VOCAB_SIZE) if budget.forced is None else budget.forced)
        budget.add(outputs[-1])
        if rng.random() < 0.2:
            budget = ThinkingBudget(sampling.thinking_token_budget or 0, BEGIN, END, prompt, outputs)


def choices(rows: SamplingRows, position: int) -> Choices | None:
    return rows.take(np.array([0]), np.array([position]))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"logit_bias": ((END, -100.0),)},
        {"allowed_token_ids": (2, 3)},
        {"bad_words_token_ids": ((END,),)},
        {"min_tokens": 9, "stop_token_ids": (END,)},
        {"seed": 3, "temperature": 1.5},
    ],
)
def test_nothing_else_that_a_request_asks_for_keeps_it_thinking(fields: dict[str, object]) -> None:
    """Not even what forbids the end itself: the budget goes before it, as in vLLM."""
    rows = SamplingRows(0, (EOS,), 1)
    rows.set(0, "a", 2, bounded(2, **fields), (3, BEGIN))
    logits = torch.linspace(0, 1, VOCAB_SIZE)[None].repeat(1, 1)
    logits[0, END] = float("-inf")
    for position in range(2, 6):
        (token,) = sample(logits, choices(rows, position)).tokens
        assert (token == END) == (position == 4)
        rows.advance([0], [token])


def test_log_probabilities_are_the_models_own() -> None:
    """Also of a token that was forced."""
    rows = SamplingRows(0, (EOS,), 1)
    rows.set(0, "a", 1, bounded(0, logprobs=0), (BEGIN,))
    logits = torch.zeros(1, VOCAB_SIZE)
    sampled = sample(logits, choices(rows, 1))
    assert sampled.tokens == [END]
    assert sampled.logprobs[0].token_id == END
    assert sampled.logprobs[0].logprob == pytest.approx(-float(np.log(VOCAB_SIZE)))


def test_a_budget_without_marks_fails_its_request_alone() -> None:
    """With the reason; nothing silently goes on thinking."""
    rows = SamplingRows(0, (EOS,), 1)
    rows.set(0, "a", 1, Sampling(thinking_token_budget=0), (BEGIN,))
    found = choices(rows, 1)
    assert found is not None and "thinking_token_budget" in dict(found.failed)[0]


def test_what_has_a_budget_is_not_drafted() -> None:
    """Its next token depends on those right before it."""
    assert not may_draft(bounded(1000))
