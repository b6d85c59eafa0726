"""Answers that repeat themselves."""

import random

from sundog.actors.core.params.sampling import Repetition


def naive(tokens: list[int], detection: Repetition) -> bool:
    """Some last pattern comes `min_count` times in a row."""
    return any(
        tokens[-size:] * detection.min_count == tokens[-size * detection.min_count :]
        for size in range(detection.min_size, detection.max_size + 1)
        if size * detection.min_count <= len(tokens)
    )


def test_a_repetition_is_found_where_a_pattern_ends_the_answer() -> None:
    """Against the definition, on random answers of few tokens."""
    rng = random.Random(0)
    found = 0
    for _ in range(3000):
        least = rng.randint(1, 3)
        detection = Repetition(least, rng.randint(least, 5), rng.randint(2, 4))
        tokens = [rng.randrange(2) for _ in range(rng.randint(0, 24))]
        found += (expected := naive(tokens, detection))
        assert detection.ends(tokens) == expected
        assert detection.ends(tokens[-detection.most_tokens :]) == expected
    assert 300 < found < 2700
