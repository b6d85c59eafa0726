"""Future of each request, reachable only by the backend: the length of its answer.

The scheduler plans without it, as it would with a real model; the backend "samples" the end token as the
trace has it. Costs O(1) per request that joins, leaves or idles, and per one that ends.

Predictors guess it for policies that order by it. The scheduler only gets `Submit.predicted_tokens`, a number
chosen before the engine. In a deployment a model makes it; here an object selected by name, so that the value
of perfect or poor prediction can be measured. Whatever the prediction, a request ends when the backend
samples its end token.
"""

from collections import defaultdict
from heapq import heappop, heappush
from typing import Final, Protocol

from sundog.actors.core.batch import Batch
from sundog.actors.core.config import ConfigError
from sundog.actors.core.predictors import Unanswered
from sundog.actors.policy_file import find_own_predictor
from sundog.sim.backend import SampledSteps, TokenSource
from sundog.sim.trace.record import TraceRequest

# Compiled code finds a final name at once, and an imported function by a look-up in its module.
_push: Final = heappush
_pop: Final = heappop
NOTHING: Final = SampledSteps(None, ())
NEVER: Final = 1 << 60
"""Number of a step that is never reached."""


class Oracle(TokenSource):
    """TokenSource that counts: request k's token number `output_tokens[k]` is its end token.

    The mapping is not copied, so that the oracles of several replicas can share one: lengths may be added
    during the run, and those of finished requests are dropped if it `forgets`, which is wrong if requests
    continue elsewhere. A request without a length never samples an end token and runs into its limit.
    Requests that end in the same step are listed in the order in which they began to decode.
    """

    __slots__ = (
        "_buckets",
        "_clock",
        "_clocks",
        "_ending",
        "_ends",
        "_first_end",
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
        """Number of tokens of requests that had any at their admission."""
        self._ends: dict[str, int] = {}
        self._buckets: dict[int, list[str]] = {}
        self._clocks: list[int] = []
        self._first_end = NEVER
        """Clock before which no request ends of those in buckets."""
        self._joining: list[tuple[str, int]] = []
        self._ending: list[str] = []
        self._idle: list[tuple[str, int]] = []

    def add(self, request_id: str, output_tokens: int) -> None:
        """Set the output length of a request that has not been submitted yet."""
        if output_tokens < 1:
            raise ValueError(f"{request_id}: {output_tokens} output tokens; at least 1 is needed")
        self._output_tokens[request_id] = output_tokens

    def begin(self, batch: Batch) -> int:
        """Apply the batch; return its number of steps, up to the first in which a request ends."""
        for request_id in batch.finished:
            self._leave(request_id)
            if self._forgets:
                self._output_tokens.pop(request_id, None)
        for request_id in batch.preempted:
            self._leave(request_id)
        for admission in batch.admitted:
            if known := admission.num_tokens - admission.num_prompt_tokens:
                self._generated[admission.request_id] = known
        for chunk in batch.chunks:
            if chunk.samples:
                self._samples_first(chunk.request_id)
        for request_id in batch.idle:
            end = self._ends.get(request_id)
            if end is not None:
                self._quit(request_id)
                self._idle.append((request_id, end))
        most = batch.max_steps
        if most == 1:
            return 1
        num_steps = self._next_end() - self._clock
        return num_steps if num_steps < most else most

    def sample(self, num_steps: int) -> SampledSteps:
        """Advance by `num_steps` steps; return the requests that sampled an end token in the last."""
        self._clock += num_steps
        clock, ended = self._clock, self._ending
        if ended:
            self._ending = []
        if clock >= self._first_end and (bucket := self._buckets.get(clock)) is not None:
            del self._buckets[clock]
            for request_id in bucket:
                del self._ends[request_id]
            ended = bucket + ended if ended else bucket
        if self._joining:
            for request_id, remaining in self._joining:
                self._enter(request_id, clock + remaining)
            self._joining.clear()
        if self._idle:
            for request_id, end in self._idle:
                self._enter(request_id, end + num_steps)
            self._idle.clear()
        return SampledSteps(None, tuple(ended)) if ended else NOTHING

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
            self._buckets[end] = [request_id]
            _push(self._clocks, end)
            if end < self._first_end:
                self._first_end = end
        else:
            bucket.append(request_id)
        self._ends[request_id] = end

    def _leave(self, request_id: str) -> None:
        """Forget a request that ended or was preempted."""
        if request_id in self._ends:
            self._quit(request_id)
        if self._generated:
            self._generated.pop(request_id, None)

    def _quit(self, request_id: str) -> None:
        """Remove a request from its bucket."""
        end = self._ends[request_id]
        del self._ends[request_id]
        bucket = self._buckets[end]
        bucket.remove(request_id)
        if not bucket:
            del self._buckets[end]

    def _next_end(self) -> int:
        """Return the first clock at which a request ends; `NEVER` if none does."""
        clocks = self._clocks
        while clocks:
            first = clocks[0]
            if first in self._buckets:
                self._first_end = first
                return first
            _pop(clocks)
        self._first_end = NEVER
        return NEVER


class Predictor(Protocol):
    """Predictor that is called once per request, in order of arrival."""

    def predict(self, request: TraceRequest) -> int | None:
        """Return a prediction of the request's output tokens; None if there is no prediction."""
        ...


class Perfect:
    """Predictor `oracle`: the true length; an upper bound on the value of prediction."""

    def predict(self, request: TraceRequest) -> int:
        return request.num_output_tokens


class ClassMean:
    """Predictor `class-mean`: the mean of the tenant's earlier requests, as from a log.

    The first request of a tenant gets the mean of all tenants, the very first request no prediction.
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
    """Predictor `noisy`: the true length times a log-normal error with median 1 and the given sigma."""

    def __init__(self, seed: int = 0, sigma: float = 0.5) -> None:
        from sundog.sim.workload import stream

        self._rng = stream(seed, "length predictions")
        self._sigma = sigma

    def predict(self, request: TraceRequest) -> int:
        error = self._rng.lognormal(0.0, self._sigma)
        return max(round(request.num_output_tokens * error), 1)


PREDICTORS = ("oracle", "class-mean", "noisy")


class Own:
    """Predictor in a user's file, which also gets the true length."""

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
    """Return the predictor of this name, or in a file, `FILE.py:NAME`; raises ConfigError if there is
    none.
    """
    if ".py" in name:
        return Own(name, seed)
    if name not in PREDICTORS:
        raise ConfigError(f"predictor is {name!r}: known are {', '.join(PREDICTORS)}, or FILE.py:NAME")
    if name == "noisy":
        return Noisy(seed)
    return Perfect() if name == "oracle" else ClassMean()
