"""The recorded outputs of a trace as a TokenSource."""

from collections.abc import Mapping, Sequence

from actors.core.batch import Batch
from sim.named_tokens import NamedTokens
from sim.token_source import Sampled

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
