"""Bounds of a request's fields, for every way it can arrive.

A value out of bounds would break something downstream: a tensor of 64-bit integers, an order of requests, a
record. It is refused with the name of its field.
"""

import math
from collections.abc import Sequence
from typing import Final

from sundog.actors.core.params.fields import INT64_MAX, INT64_MIN, out_of_range
from sundog.actors.core.params.sampling import Sampling
from sundog.actors.messages import Generate, Refused

MAX_CHOICES: Final = 128
"""Most choices of one prompt: OpenAI's own limit."""


def out_of_bounds(
    generate: Generate, vocabulary_size: int | None, max_logprobs: int = -1, known: Sampling | None = None
) -> Refused | None:
    """Return the refusal of a request with a field out of bounds, if any.

    -1 for `max_logprobs` is no limit. Sampling parameters that are the same object as `known` are not checked
    again.
    """
    refused = None
    if generate.n != 1 or generate.priority or generate.predicted_tokens is not None:
        refused = (
            _integer("n", generate.n, 1, MAX_CHOICES)
            or _integer("priority", generate.priority, INT64_MIN, INT64_MAX)
            or _integer("predicted_tokens", generate.predicted_tokens, 0, INT64_MAX)
        )
    if not (generate.slo_ttft_s is generate.slo_tpot_s is generate.slo_e2e_s is None):
        refused = (
            refused
            or _seconds("slo_ttft_s", generate.slo_ttft_s)
            or _seconds("slo_tpot_s", generate.slo_tpot_s)
            or _seconds("slo_e2e_s", generate.slo_e2e_s)
        )
    if refused is None and generate.sampling is not known:
        refused = _all_sampling(generate.sampling, vocabulary_size, max_logprobs)
    return refused or _last_seed(generate)


def _all_sampling(sampling: Sampling, vocabulary_size: int | None, max_logprobs: int) -> Refused | None:
    return (
        _sampling(sampling, vocabulary_size)
        or _logits(sampling, vocabulary_size)
        or _logprobs("logprobs", sampling.logprobs, vocabulary_size, max_logprobs)
        or _logprobs("prompt_logprobs", sampling.prompt_logprobs, vocabulary_size, max_logprobs)
    )


def _last_seed(generate: Generate) -> Refused | None:
    seed = generate.sampling.seed
    if seed is None or seed + generate.n - 1 <= INT64_MAX:
        return None
    return _refused("seed", seed, f"with n {generate.n} give at most {INT64_MAX - generate.n + 1}")


def _sampling(sampling: Sampling, vocabulary_size: int | None) -> Refused | None:
    for name, value, advice in out_of_range(sampling):
        return _refused(name, value, advice)
    if sampling.max_tokens is not None and sampling.min_tokens > sampling.max_tokens:
        advice = f"ask for at most max_tokens ({sampling.max_tokens})"
        return _refused("min_tokens", sampling.min_tokens, advice)
    if not all(sampling.stop):
        return Refused("stop has an empty string: leave it out", param="stop")
    return _tokens("stop_token_ids", sampling.stop_token_ids, vocabulary_size) or _tokens(
        "logprob_token_ids", sampling.logprob_token_ids, vocabulary_size
    )


def _logits(sampling: Sampling, vocabulary_size: int | None) -> Refused | None:
    for _, bias in sampling.logit_bias:
        if not -100 <= bias <= 100:
            return _refused("a bias", bias, "give numbers from -100 to 100", "logit_bias")
    if not all(sampling.bad_words):
        return Refused("bad_words has an empty string: leave it out", param="bad_words")
    biased = [token for token, _ in sampling.logit_bias]
    if (refused := _tokens("logit_bias", biased, vocabulary_size)) is not None:
        return refused
    allowed = sampling.allowed_token_ids
    if allowed is None:
        return None
    if not allowed:
        return Refused("allowed_token_ids is empty: name a token, or leave it out", param="allowed_token_ids")
    return _tokens("allowed_token_ids", allowed, vocabulary_size)


def _tokens(name: str, token_ids: Sequence[int], vocabulary_size: int | None) -> Refused | None:
    """Refuse the first token that the model does not have."""
    most = INT64_MAX if vocabulary_size is None else vocabulary_size - 1
    for token in token_ids:
        if not 0 <= token <= most:
            return _refused(f"a token of {name}", token, f"the model's are 0 to {most}", name)
    return None


def _logprobs(name: str, count: int | None, vocabulary_size: int | None, most: int) -> Refused | None:
    """Check a number of log probabilities; -1 means one for each token of the vocabulary."""
    if count is None or (most == -1 and count >= -1):
        return None
    wanted = INT64_MAX if vocabulary_size is None else vocabulary_size
    wanted = wanted if count == -1 else count
    if 0 <= wanted <= most:
        return None
    advice = f"at most {most} are given (--max-logprobs)"
    return _refused(name, count, advice)


def _integer(name: str, value: int | None, least: int, most: int) -> Refused | None:
    if value is None or least <= value <= most:
        return None
    return _refused(name, value, f"give an integer from {least} to {most}")


def _seconds(name: str, value: float | None) -> Refused | None:
    if value is None or (math.isfinite(value) and value >= 0):
        return None
    return _refused(name, value, "give a finite number, at least 0")


def _refused(name: str, value: object, advice: str, param: str | None = None) -> Refused:
    is_huge = isinstance(value, int) and value.bit_length() > 128
    shown = "an integer of more than 128 bits" if is_huge else value
    return Refused(f"{name} is {shown}: {advice}", param=param or name)
