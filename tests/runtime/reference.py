"""Reference of one request alone, decoded by the library's own forward pass and logits processors.

The order is vLLM V1's. Only the penalties for presence and frequency, which the library does not have, are
formulas here (OpenAI's API reference: logit − count · frequency − [count > 0] · presence).
"""

import random
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel
from transformers.generation import logits_process as library

from sundog.actors.core.params.sampling import Sampling
from sundog.runtime.sampling.rows import SamplingRows


def changed(logits_1V: Tensor, prompt: list[int], outputs: list[int], sampling: Sampling, eos: int) -> Tensor:
    """The logits [1, V] after all that depends on no chance but temperature and its filters."""
    said, all_ids = torch.tensor([outputs], dtype=torch.int64), torch.tensor([prompt + outputs])
    if sampling.allowed_token_ids is not None:
        mask_V = torch.full((logits_1V.shape[1],), float("-inf"))
        mask_V[list(sampling.allowed_token_ids)] = 0.0
        logits_1V = logits_1V + mask_V
    if sampling.bad_words_token_ids:
        words = [list(word) for word in sampling.bad_words_token_ids]
        logits_1V = library.NoBadWordsLogitsProcessor(words)(said, logits_1V)
    ends = sorted({eos, *sampling.stop_token_ids})
    at_least = library.MinNewTokensLengthLogitsProcessor(len(prompt), sampling.min_tokens, ends)
    logits_1V = at_least(all_ids, logits_1V)
    for token, bias in sampling.logit_bias:
        logits_1V[0, token] += bias
    if sampling.repetition_penalty != 1:
        logits_1V = library.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)(all_ids, logits_1V)
    count_V = torch.bincount(said[0], minlength=logits_1V.shape[1])
    logits_1V = logits_1V - sampling.frequency_penalty * count_V
    logits_1V = logits_1V - sampling.presence_penalty * (count_V > 0)
    if (end := ends_thinking(prompt, outputs, sampling)) is not None:
        logits_1V = torch.full_like(logits_1V, float("-inf"))
        logits_1V[0, end] = 0.0
    return logits_1V


def ends_thinking(prompt: list[int], outputs: list[int], sampling: Sampling) -> int | None:
    """The token that must come next, where a section of reasoning has spent its budget."""
    if sampling.thinking_token_budget is None or sampling.thought is None:
        return None
    (begin, end), tokens = sampling.thought, prompt + outputs
    opened = max((at for at, token in enumerate(prompt) if token == begin), default=-1)
    opened = -1 if end in prompt[opened + 1 :] else opened
    for at in range(len(prompt), len(tokens)):
        if tokens[at] == end:
            opened = -1
        elif tokens[at] == begin and opened < 0:
            opened = at
    return end if opened >= 0 and len(tokens) - opened - 1 >= sampling.thinking_token_budget else None


def with_budget(rng: random.Random, sampling: Sampling, prompt: list[int], vocab_size: int) -> Sampling:
    """The same, two times in three with a budget for reasoning, which its prompt may have begun."""
    begin, end = rng.choice(prompt), rng.randrange(vocab_size)
    if begin == end or rng.random() < 1 / 3:
        return sampling
    return replace(sampling, thinking_token_budget=rng.randint(0, len(prompt) + 8), thought=(begin, end))


def choose(logits_1V: Tensor, sampling: Sampling, position: int) -> int:
    """The likeliest, or the token that the seed draws from what the library's filters leave."""
    if sampling.temperature == 0:
        return int(logits_1V.argmax())
    filters = LogitsProcessorList([library.TemperatureLogitsWarper(sampling.temperature)])
    if sampling.min_p:
        filters.append(library.MinPLogitsWarper(sampling.min_p))
    if sampling.top_k is not None:
        filters.append(library.TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        filters.append(library.TopPLogitsWarper(sampling.top_p))
    sum_V = filters(None, logits_1V)[0].softmax(-1).cumsum(-1)
    rows = SamplingRows(0, (), 1)
    rows.set(0, "any", 0, sampling)
    choices = rows.take(np.zeros(1, np.int64), np.array([position]))
    assert choices is not None
    return int(torch.searchsorted(sum_V, choices.uniform_R[0] * float(sum_V[-1]), right=True))


def decode(
    model: PreTrainedModel, prompt: list[int], sampling: Sampling, num_tokens: int, eos: int, *, ends: bool
) -> list[int]:
    """The answer, up to a token that ends it if it `ends`."""
    outputs: list[int] = []
    while len(outputs) < num_tokens:
        with torch.no_grad():
            logits_1V = model(torch.tensor([prompt + outputs])).logits[:, -1].clone()
        logits_1V = changed(logits_1V, prompt, outputs, sampling, eos)
        outputs.append(choose(logits_1V, sampling, len(prompt) + len(outputs)))
        if ends and outputs[-1] in (eos, *sampling.stop_token_ids):
            break
    return outputs


def random_sampling(rng: random.Random, vocab_size: int) -> Sampling:
    """Some parameters, most requests with several at once."""

    def maybe(field: str, value: object) -> dict[str, object]:
        return {field: value} if rng.random() < 0.35 else {}

    def some(most: int) -> tuple[int, ...]:
        return tuple(rng.sample(range(vocab_size), rng.randint(1, min(most, vocab_size))))

    words = tuple(tuple(rng.choices(range(vocab_size), k=rng.randint(1, 3))) for _ in range(40))
    fields = {
        **maybe("repetition_penalty", rng.choice((0.5, 1.2, 2.0, 10.0))),
        **maybe("presence_penalty", rng.uniform(-2, 2)),
        **maybe("frequency_penalty", rng.uniform(-2, 2)),
        **maybe("logit_bias", tuple((token, rng.uniform(-20, 20)) for token in some(300))),
        **maybe("bad_words_token_ids", words),
        **maybe("allowed_token_ids", some(40)),
        **maybe("min_tokens", rng.randint(1, 12)),
        **maybe("stop_token_ids", some(60)),
    }
    if rng.random() < 0.5:
        return Sampling(temperature=0.0, **fields)  # type: ignore[arg-type]
    drawn = {
        **maybe("min_p", rng.uniform(0.01, 0.3)),
        **maybe("top_k", rng.randint(1, 60)),
        **maybe("top_p", rng.uniform(0.2, 0.99)),
    }
    return Sampling(temperature=rng.uniform(0.3, 1.5), seed=rng.randrange(1000), **fields, **drawn)  # type: ignore[arg-type]


def with_words_of(sampling: Sampling, plain: list[int]) -> Sampling:
    """The same with bad words of one, two and three tokens, taken from what the request says."""
    return replace(sampling, bad_words_token_ids=((plain[0],), tuple(plain[2:4]), tuple(plain[5:8])))
