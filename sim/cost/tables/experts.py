"""The routed experts of a layer as they were measured."""

import math
from typing import Any

import numpy as np

from sim.cost.tables.interpolate import Coverage, Floats, Points, log_interp, rising


class Experts:
    """One layer's experts: `seconds` of a number of tokens.

    Tables give two ways to route: balanced, every expert in turn, and by a power law of exponent
    1.2. With few tokens balanced routing meets more experts than real tokens do, which are alike;
    with many the power law loads a few experts more than a trained router does, and its table rises
    and falls with how the draw fell (32 layers of 4,096 x 14,336 on two H100: 15.7 ms for 16
    tokens, 22.1 for 80, 19.1 for 96). Each bounds the truth from above where it is wrong, so the
    lower of the two counts, each made to rise first. That decides by the shapes of the tables: small
    experts follow the power law up to some hundred tokens, Mixtral's are balanced from eight on.

    For a model that was not measured, the most similar: first by experts per token and number of
    experts, then by the size of an expert, whose share of the time is taken.
    """

    def __init__(
        self, tables: dict[str, Any], shape: tuple[int, int, int, int], ranks: int, coverage: Coverage
    ) -> None:
        hidden, inner, per_token, num_experts = shape
        key = _most_alike(tables["experts"], (hidden, inner / ranks, per_token, num_experts))
        tokens, seconds = _curve(tables, "experts", key)
        if "balanced" in tables:
            others, balanced = _curve(tables, "balanced", key)
            if len(others):
                seconds = np.minimum(seconds, np.interp(tokens, others, balanced))
        share = (hidden * inner / ranks) / (key[0] * key[1] / key[4])
        self._tokens: list[float] = tokens.tolist()
        self._seconds: list[float] = (seconds * share).tolist()
        self._coverage = coverage
        coverage.note("expert size", share, 1.0, 1.0)

    def seconds(self, num_tokens: int) -> float:
        """One layer's experts."""
        self._coverage.note("experts", num_tokens, self._tokens[0], self._tokens[-1])
        return log_interp(num_tokens, self._tokens, self._seconds)


def _most_alike(points: Points, shape: tuple[int, float, int, int]) -> tuple[int, ...]:
    hidden, inner, per_token, num_experts = shape

    def unlike(key: tuple[int, ...]) -> tuple[float, float, tuple[int, ...]]:
        k_hidden, k_inner, k_per_token, k_experts, k_ranks = key
        routing = (k_per_token / per_token, k_experts / num_experts)
        size = k_hidden * k_inner / k_ranks / (hidden * inner)
        return sum(abs(math.log(ratio)) for ratio in routing), abs(math.log(size)), key

    return min({tuple(map(int, row[:5])) for row in points}, key=unlike)


def _curve(tables: dict[str, Any], name: str, key: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Tokens, and seconds made to rise."""
    points: Points = tables[name]
    own = (points[:, :5] == key).all(axis=1)
    tokens: Floats = points[own][:, 5].astype(np.float64)
    seconds: Floats = tables[f"{name}_s"][own].astype(np.float64)
    return tokens, rising(seconds) if len(seconds) else seconds
