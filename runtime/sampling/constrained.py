"""Sampling under grammars: masks before tokens are chosen, updates afterwards."""

from dataclasses import replace

import numpy as np
from torch import Tensor

from sundog.runtime.sampling.choices import Choices
from sundog.runtime.sampling.sampler import Bitmasks, Sampled, sample


def choose(logits_RV: Tensor, choices: Choices | None) -> Sampled:
    """Return a token for each row like `sample`, under the grammars of those that have one.

    On a GPU the logits are still being computed: the masks are made meanwhile.
    """
    if choices is None or not choices.matchers:
        return sample(logits_RV, choices)
    masks = _masks(choices)
    return _advanced(choices, sample(logits_RV, _freed(choices), masks))


def _masks(choices: Choices) -> Bitmasks:
    num_words = max(matcher.num_words for _, matcher in choices.matchers)
    word_MW = np.zeros((len(choices.matchers), max(num_words, 1)), np.int32)
    for word_W, (_, matcher) in zip(word_MW, choices.matchers, strict=True):
        matcher.fill(word_W)
    return Bitmasks(np.array([row for row, _ in choices.matchers], np.int64), word_MW)


def _freed(choices: Choices) -> Choices:
    complete = {row for row, matcher in choices.matchers if matcher.is_complete}
    if not complete:
        return choices
    return replace(choices, edits=tuple(pair for pair in choices.edits if pair[0] not in complete))


def _advanced(choices: Choices, sampled: Sampled) -> Sampled:
    failed = dict(sampled.failed)
    for row, matcher in choices.matchers:
        if row not in failed:
            matcher.accept(sampled.tokens[row])
        if matcher.failed is not None:
            failed[row] = matcher.failed
    if failed == sampled.failed:
        return sampled
    tokens = [0 if row in failed else token for row, token in enumerate(sampled.tokens)]
    logprobs = {row: each for row, each in sampled.logprobs.items() if row not in failed}
    return replace(sampled, tokens=tokens, failed=failed, logprobs=logprobs)
