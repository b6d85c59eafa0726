"""The future of each request, reachable only by the backend: how long its answer will be.

The scheduler plans without it, as it would with a real model; the backend "samples" the end token
when the trace says so. Costs O(1) per request that joins, leaves or idles, and per one that ends.

Predictors guess it for policies that order by it. The scheduler sees no future: all it is given is
`Submit.predicted_tokens`, a number chosen in front of the engine. In a deployment that is a model; here it is
an object that the composition is handed by name, so that the worth of perfect or poor prediction can be
measured. Whatever the prediction, a request ends when the backend samples its end token.
"""

import heapq
from collections import defaultdict
from typing import Final, Protocol

from sundog.actors.core.batch import Batch
from sundog.actors.core.config import ConfigError
from sundog.actors.core.predictors import Unanswered
from sundog.actors.policy_file import find_own_predictor
from sundog.sim.backend import SampledSteps, TokenSource
from sundog.sim.trace.record import TraceRequest

NOTHING: Final = SampledSteps(None, ())


class Oracle(TokenSource):
    """A TokenSource that counts: request k's token number `output_tokens[k]` is its end token.

    The mapping is taken as it is, so that the oracles of several replicas can share one: lengths
    may be added while the run goes on, and those of finished requests are dropped if it `forgets`, which
    it must not where requests go on elsewhere. A request without a length never samples an end token and
    runs into its limit. Requests that end in the same step are named in the order in which they began to
    decode.
    """

    __slots__ = (
        "_buckets",
        "_clock",
        "_clocks",
        "_ending",
        "_ends",
        "_forgets",
        "_generated",
        "_idle",
        "_joining",
        "_output_tokens",
    )

    def __init__(self, output_tokens: dict[str, int] | None = None, *, forgets: bool = True) -> None:
        self._output_tokens = {} if output_tokens is None else output_tokens
        self._forgets = forgets
        self._clock = 0
        self._generated: dict[str, int] = {}
        """The numbers of tokens that requests had when they were admitted, of those that had any."""
        self._ends: dict[str, int] = {}
        self._buckets: dict[int, dict[str, None]] = {}
        self._clocks: list[int] = []
        self._joining: list[tuple[str, int]] = []
        self._ending: list[str] = []
        self._idle: list[tuple[str, int]] = []

    def add(self, request_id: str, output_tokens: int) -> None:
        """Say how many tokens a request that has not been submitted yet will produce."""
        if output_tokens < 1:
            raise ValueError(f"{request_id}: {output_tokens} output tokens; at least 1 is needed")
        self._output_tokens[request_id] = output_tokens

    def begin(self, batch: Batch) -> int:
        """Fold the diff in; steps until the first in which a request ends, or the batch's most."""
        for request_id in batch.finished:
            self._leave(request_id)
            self._generated.pop(request_id, None)
            if self._forgets:
                self._output_tokens.pop(request_id, None)
        for request_id in batch.preempted:
            self._leave(request_id)
            self._generated.pop(request_id, None)
        for admission in batch.admitted:
            if known := admission.num_tokens - admission.num_prompt_tokens:
                self._generated[admission.request_id] = known
        for chunk in batch.chunks:
            if chunk.samples:
                self._samples_first(chunk.request_id)
        for request_id in batch.idle:
            end = self._ends.get(request_id)
            if end is not None:
                self._leave(request_id)
                self._idle.append((request_id, end))
        if batch.max_steps == 1:
            return 1
        end = self._next_end()
        return batch.max_steps if end is None else min(batch.max_steps, end - self._clock)

    def sample(self, num_steps: int) -> SampledSteps:
        """Let `num_steps` steps pass; returns the requests that sampled an end token in the last."""
        self._clock += num_steps
        if not (self._joining or self._ending or self._idle or self._clock in self._buckets):
            return NOTHING
        ended = list(self._buckets.pop(self._clock, ()))
        for request_id in ended:
            del self._ends[request_id]
        ended += self._ending
        self._ending.clear()
        for request_id, remaining in self._joining:
            self._enter(request_id, self._clock + remaining)
        for request_id, end in self._idle:
            self._enter(request_id, end + num_steps)
        self._joining.clear()
        self._idle.clear()
        return SampledSteps(None, tuple(ended))

    def _samples_first(self, request_id: str) -> None:
        length = self._output_tokens.get(request_id)
        if length is None:
            return
        remaining = length - self._generated.get(request_id, 0) - 1
        if remaining > 0:
            self._joining.append((request_id, remaining))
        else:
            self._ending.append(request_id)

    def _enter(self, request_id: str, end: int) -> None:
        bucket = self._buckets.get(end)
        if bucket is None:
            bucket = self._buckets[end] = {}
            heapq.heappush(self._clocks, end)
        bucket[request_id] = None
        self._ends[request_id] = end

    def _leave(self, request_id: str) -> None:
        end = self._ends.pop(request_id, None)
        if end is not None:
            del self._buckets[end][request_id]

    def _next_end(self) -> int | None:
        clocks = self._clocks
        while clocks and not self._buckets.get(clocks[0]):
            self._buckets.pop(heapq.heappop(clocks), None)
        return clocks[0] if clocks else None


class Predictor(Protocol):
    """A predictor that is asked once per request, in order of arrival."""

    def predict(self, request: TraceRequest) -> int | None:
        """Return a prediction of the request's output tokens; None without one."""
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
        from sundog.sim.workload import stream

        self._rng = stream(seed, "length predictions")
        self._sigma = sigma

    def predict(self, request: TraceRequest) -> int:
        error = self._rng.lognormal(0.0, self._sigma)
        return max(round(request.num_output_tokens * error), 1)


PREDICTORS = ("oracle", "class-mean", "noisy")


class Own:
    """A predictor in a user's file, which is told the truth, too."""

    def __init__(self, text: str, seed: int) -> None:
        self._inner, self._seed = find_own_predictor(text), seed

    def predict(self, request: TraceRequest) -> int | None:
        asked = Unanswered(
            request.request_id,
            request.num_prompt_tokens,
            prompt_token_ids=None,
            tenant=request.tenant,
            session=request.session,
            priority=request.priority,
            num_output_tokens=request.num_output_tokens,
            seed=self._seed,
        )
        return self._inner.predict(asked)


def find_predictor(name: str, seed: int = 0) -> Predictor:
    """The predictor of this name, or in a file, `FILE.py:NAME`; raises ConfigError if there is none."""
    if ".py" in name:
        return Own(name, seed)
    if name not in PREDICTORS:
        raise ConfigError(f"predictor is {name!r}: known are {', '.join(PREDICTORS)}, or FILE.py:NAME")
    if name == "noisy":
        return Noisy(seed)
    return Perfect() if name == "oracle" else ClassMean()
