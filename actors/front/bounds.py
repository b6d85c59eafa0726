"""The bounds of a request's fields, however it came in.

A value outside its bounds would break something further down: a tensor of 64-bit integers, an order of
requests, a record. It is refused by the name of its field.
"""

import math

from actors.core.sampling import Sampling
from actors.messages import Generate, Refused

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
MAX_CHOICES = 128
"""The most choices that one prompt may be asked for: OpenAI's own limit."""


def out_of_bounds(generate: Generate, vocabulary_size: int | None) -> Refused | None:
    """Why the request cannot be taken, if one of its fields is out of bounds."""
    return (
        _integer("n", generate.n, 1, MAX_CHOICES)
        or _integer("priority", generate.priority, INT64_MIN, INT64_MAX)
        or _integer("predicted_tokens", generate.predicted_tokens, 0, INT64_MAX)
        or _seconds("slo_ttft_s", generate.slo_ttft_s)
        or _sampling(generate.sampling, vocabulary_size)
        or _last_seed(generate)
    )


def _last_seed(generate: Generate) -> Refused | None:
    """The seeds of the choices count up from the first."""
    seed = generate.sampling.seed
    if seed is None or seed + generate.n - 1 <= INT64_MAX:
        return None
    return _refused("seed", seed, f"with n {generate.n} give at most {INT64_MAX - generate.n + 1}")


def _sampling(sampling: Sampling, vocabulary_size: int | None) -> Refused | None:
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        return _refused("temperature", sampling.temperature, "give a finite number, at least 0")
    if not 0 < sampling.top_p <= 1:
        return _refused("top_p", sampling.top_p, "give a number above 0, at most 1")
    refused = (
        _integer("top_k", sampling.top_k, 1, INT64_MAX)
        or _integer("seed", sampling.seed, INT64_MIN, INT64_MAX)
        or _integer("max_tokens", sampling.max_tokens, 1, INT64_MAX)
        or _integer("min_tokens", sampling.min_tokens, 0, INT64_MAX)
    )
    if refused is not None:
        return refused
    if sampling.max_tokens is not None and sampling.min_tokens > sampling.max_tokens:
        advice = f"ask for at most max_tokens ({sampling.max_tokens})"
        return _refused("min_tokens", sampling.min_tokens, advice)
    most = INT64_MAX if vocabulary_size is None else vocabulary_size - 1
    for token in sampling.stop_token_ids:
        if not 0 <= token <= most:
            return _refused("a stop token", token, f"the model's are 0 to {most}", "stop_token_ids")
    if not all(sampling.stop):
        return Refused("stop has an empty string: leave it out", param="stop")
    return None


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
