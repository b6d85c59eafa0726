"""The recorded outputs of a trace as a TokenSource that names every token."""

from collections.abc import Callable, Mapping, Sequence

from actors.core.batch import Batch
from sim.backend import Sampled, TokenSource


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


FALLBACK_TOKEN = 3
"""What a request samples whose recorded outputs have run out."""


def recorded_outputs(outputs: Mapping[str, Sequence[int]]) -> NamedTokens:
    """Each request samples its own outputs; the scheduler sees by itself where it ends."""
    return NamedTokens(outputs.__getitem__, FALLBACK_TOKEN, is_end=False)


Drafts = Sequence[tuple[int, int]]
"""For each of a request's outputs, in order: how many drafts are offered for its step, how many are right."""


class DraftedOutputs(NamedTokens):
    """The recorded outputs of requests some of whose tokens are drafted, and verified as recorded.

    A request that computes drafts in a step samples one token more than it had right ones among them.
    """

    __slots__ = ("_drafted", "_drafts")

    def __init__(self, outputs: Mapping[str, Sequence[int]], drafts: Mapping[str, Drafts]) -> None:
        super().__init__(outputs.__getitem__, FALLBACK_TOKEN, is_end=False)
        self._drafts = drafts
        self._drafted: dict[str, int] = {}

    def begin(self, batch: Batch) -> int:
        """Fold the diff in, with the numbers of drafts that the step verifies; always one step."""
        self._drafted = dict(batch.drafts)
        return super().begin(batch)

    def sample(self, num_steps: int) -> Sampled:
        """The accepted drafts and the token after them of each request that samples, and the next offers."""
        tokens: list[tuple[str, int]] = []
        offered: list[tuple[str, int]] = []
        joining = {name: self._prefilling[name] for name in self._joining}
        for name, token in super().sample(num_steps).tokens or ():
            sequence, after = self._decoding[name]
            tokens.append((name, token))
            accepted = 0 if name in joining else min(self._drafted.get(name, 0), self._of(name, after - 1)[1])
            for index in range(after, after + accepted):
                tokens.append((name, sequence[index] if index < len(sequence) else FALLBACK_TOKEN))
            self._decoding[name] = sequence, after + accepted
            if (num_drafts := self._of(name, after + accepted)[0]) > 0:
                offered.append((name, num_drafts))
        return Sampled(tuple(tokens), (), drafts=tuple(offered))

    def _of(self, name: str, index: int) -> tuple[int, int]:
        drafts = self._drafts[name]
        return drafts[index] if index < len(drafts) else (0, 0)
