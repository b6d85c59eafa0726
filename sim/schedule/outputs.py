"""A TokenSource with recorded outputs: each request samples its own, whatever else runs."""

from collections.abc import Mapping, Sequence

from actors.core.batch import Batch
from sim.backend import Sampled

FALLBACK_TOKEN = 3
"""What a request samples whose recorded outputs have run out."""


class RecordedOutputs:
    """Names the token of every request that samples. O(decoding requests) a step."""

    __slots__ = ("_idle", "_joining", "_next", "_outputs", "_prefilling")

    def __init__(self, outputs: Mapping[str, Sequence[int]]) -> None:
        self._outputs = outputs
        self._prefilling: dict[str, int] = {}
        self._next: dict[str, int] = {}
        """For each request that decodes, which of its outputs it samples next."""
        self._joining: list[str] = []
        self._idle: frozenset[str] = frozenset()

    def begin(self, batch: Batch) -> int:
        """Fold the diff in; one step at a time, so that every token is named."""
        for name in (*batch.finished, *batch.preempted):
            self._next.pop(name, None)
            self._prefilling.pop(name, None)
        for admission in batch.admitted:
            known = admission.num_tokens - admission.num_prompt_tokens
            self._prefilling[admission.request_id] = known
        self._joining = [chunk.request_id for chunk in batch.chunks if chunk.samples]
        self._idle = frozenset(batch.idle)
        return 1

    def sample(self, num_steps: int) -> Sampled:
        """One token for each request that samples in the step."""
        for name in self._joining:
            self._next[name] = self._prefilling.pop(name)
        tokens = []
        for name, position in self._next.items():
            if name not in self._idle:
                outputs = self._outputs[name]
                token = outputs[position] if position < len(outputs) else FALLBACK_TOKEN
                tokens.append((name, token))
                self._next[name] = position + 1
        return Sampled(tuple(tokens), ())
