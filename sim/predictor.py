"""Guesses of how long answers will be, for policies that order by it.

The scheduler sees no future: all it is given is `Submit.predicted_tokens`, a number chosen in front of the
engine. In a deployment that is a model; here it is one of three objects that the composition is handed by
name, so that the worth of perfect or poor prediction can be measured. Whatever the prediction, a request ends
when the backend samples its end token.
"""

from collections import defaultdict
from typing import Protocol

from actors.core.config import ConfigError
from sim.trace.record import TraceRequest


class Predictor(Protocol):
    """Asked once per request, in order of arrival."""

    def predict(self, request: TraceRequest) -> int | None:
        """How many output tokens the request may have; None is no idea."""
        ...


class Perfect:
    """`oracle`: the truth; the bound of what any prediction can bring."""

    def predict(self, request: TraceRequest) -> int:
        return request.num_output_tokens


class ClassMean:
    """`class-mean`: the mean of the tenant's earlier requests, as a log of the past would give.

    A tenant's first request is given the mean of all tenants', the very first none.
    """

    def __init__(self) -> None:
        self._sums: dict[str | None, list[int]] = defaultdict(lambda: [0, 0])
        self._all = [0, 0]

    def predict(self, request: TraceRequest) -> int | None:
        own = self._sums[request.tenant]
        total, count = own if own[1] else self._all
        for sums in (own, self._all):
            sums[0] += request.num_output_tokens
            sums[1] += 1
        return max(round(total / count), 1) if count else None


class Noisy:
    """`noisy`: the truth times a log-normal error of median 1 and this sigma."""

    def __init__(self, seed: int = 0, sigma: float = 0.5) -> None:
        from sim.workload import stream

        self._rng = stream(seed, "length predictions")
        self._sigma = sigma

    def predict(self, request: TraceRequest) -> int:
        error = self._rng.lognormal(0.0, self._sigma)
        return max(round(request.num_output_tokens * error), 1)


PREDICTORS = ("oracle", "class-mean", "noisy")


def find_predictor(name: str, seed: int = 0) -> Predictor:
    """The predictor of this name; raises ConfigError if there is none."""
    if name not in PREDICTORS:
        raise ConfigError(f"predictor is {name!r}: known are {', '.join(PREDICTORS)}")
    if name == "noisy":
        return Noisy(seed)
    return Perfect() if name == "oracle" else ClassMean()
