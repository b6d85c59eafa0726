"""The future of each request, reachable only by the backend: how long its answer will be.

The scheduler plans without it, as it would with a real model; the backend "samples" the end token
when the trace says so. Costs O(1) per request that joins, leaves or idles, and per one that ends.
"""

import heapq
from typing import Final

from actors.core.batch import Batch
from sim.backend import Sampled, TokenSource

NOTHING: Final = Sampled(None, ())


class Oracle(TokenSource):
    """A TokenSource that counts: request k's token number `output_tokens[k]` is its end token.

    The mapping is taken as it is, so that the oracles of several replicas can share one: lengths
    may be added while the run goes on, and those of finished requests are dropped. A request
    without a length never samples an end token and runs into its limit. Requests that end in the
    same step are named in the order in which they began to decode.
    """

    __slots__ = (
        "_buckets",
        "_clock",
        "_clocks",
        "_ending",
        "_ends",
        "_generated",
        "_idle",
        "_joining",
        "_output_tokens",
    )

    def __init__(self, output_tokens: dict[str, int] | None = None) -> None:
        self._output_tokens = {} if output_tokens is None else output_tokens
        self._clock = 0
        self._generated: dict[str, int] = {}
        """Tokens that requests had when they were admitted, of those that had any."""
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

    def sample(self, num_steps: int) -> Sampled:
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
        return Sampled(None, tuple(ended))

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
