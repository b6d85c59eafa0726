"""Requests of all kinds that arrive over time, for engines under the scheduler's decisions."""

import random
from collections.abc import Callable

from sundog.actors.core.params.sampling import Sampling
from tests.runtime.models import random_prompt
from tests.runtime.scheduled import Asked


def mixture(seed: int, sampling: Callable[[int], Sampling]) -> dict[str, Asked]:
    """Prompts of all lengths, some of which begin alike, arriving over time."""
    rng, shared = random.Random(seed), random_prompt(99, 24)
    return {
        str(i): Asked(
            shared[: rng.choice((0, 0, 16, 24))] + random_prompt(i, rng.randint(1, 40)),
            rng.randint(1, 16),
            sampling(i),
            arrives=rng.randint(0, 12),
        )
        for i in range(9)
    }


def greedy(_number: int) -> Sampling:
    return Sampling(temperature=0.0)


def drawn(number: int) -> Sampling:
    filters = ({}, {"top_k": 20}, {"top_p": 0.8}, {"top_k": 40, "top_p": 0.9, "min_p": 0.05})
    return Sampling(temperature=0.0 if number % 5 == 4 else 0.9, seed=number, **filters[number % 4])  # type: ignore[arg-type]


def remembering(number: int) -> Sampling:
    """Some look back at their tokens, some want log probabilities, others neither."""
    kinds = ({}, {"repetition_penalty": 1.5}, {"logprobs": 2}, {"frequency_penalty": 1.0, "min_tokens": 4})
    return Sampling(temperature=0.7, seed=number, **kinds[number % 4])  # type: ignore[arg-type]
