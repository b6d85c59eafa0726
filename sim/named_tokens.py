"""A TokenSource that names every token: each request has a sequence of its own, whatever else runs."""

from collections.abc import Callable, Sequence

from actors.core.batch import Batch
from sim.token_source import Sampled, TokenSource


class NamedTokens(TokenSource):
    """Gives each request the tokens of `tokens_of(request_id)` in order, then `last_token` for ever.

    A request resumed after a preemption goes on where it was. With `is_end` a request that samples
    `last_token` has ended. O(decoding requests) a step, as every token is named.
    """

    __slots__ = ("_decoding", "_idle", "_is_end", "_joining", "_last_token", "_prefilling", "tokens_of")

    def __init__(self, tokens_of: Callable[[str], Sequence[int]], last_token: int, *, is_end: bool) -> None:
        self.tokens_of = tokens_of
        self._last_token, self._is_end = last_token, is_end
        self._prefilling: dict[str, int] = {}
        """For each request that prefills, how many tokens of its sequence it has had."""
        self._decoding: dict[str, tuple[Sequence[int], int]] = {}
        """For each request that decodes, its sequence and the index of its next token there."""
        self._joining: list[str] = []
        self._idle: frozenset[str] = frozenset()

    def begin(self, batch: Batch) -> int:
        """Fold the diff in; one step at a time, so that every token is named."""
        for request_id in (*batch.finished, *batch.preempted):
            self._decoding.pop(request_id, None)
            self._prefilling.pop(request_id, None)
        for admission in batch.admitted:
            known = admission.num_tokens - admission.num_prompt_tokens
            self._prefilling[admission.request_id] = known
        self._joining = [chunk.request_id for chunk in batch.chunks if chunk.samples]
        self._idle = frozenset(batch.idle)
        return 1

    def sample(self, num_steps: int) -> Sampled:
        """One token for each request that samples in the step."""
        for request_id in self._joining:
            index = self._prefilling.pop(request_id)
            self._decoding[request_id] = self.tokens_of(request_id), index
        tokens, ended = [], []
        for request_id, (sequence, index) in self._decoding.items():
            if request_id in self._idle:
                continue
            token = sequence[index] if index < len(sequence) else self._last_token
            self._decoding[request_id] = sequence, index + 1
            tokens.append((request_id, token))
            if self._is_end and token == self._last_token:
                ended.append(request_id)
        return Sampled(tuple(tokens), tuple(ended))
