"""Token scripts of emulated requests, independent of preemptions."""

from collections.abc import Iterator

from sundog.actors.core.batch import Batch
from sundog.sim.backend import SampledSteps, TokenSource
from sundog.sim.emulation.answers import Answers


class Scripts:
    """Tokens that each request will produce, kept while it is unfinished."""

    __slots__ = ("_answers", "_eos_token_id", "_said", "_scripts")

    def __init__(self, answers: Answers, eos_token_id: int) -> None:
        self._answers, self._eos_token_id = answers, eos_token_id
        self._scripts: dict[str, Iterator[int]] = {}
        self._said: dict[str, list[int]] = {}

    def begin(self, batch: Batch) -> None:
        """Make the scripts of new requests."""
        for admission in batch.admitted:
            if admission.request_id not in self._scripts:
                self._scripts[admission.request_id] = self._answers.script(admission, self._eos_token_id)
                self._said[admission.request_id] = []

    def length(self, request_id: str) -> int | None:
        """Return None: the scheduler detects the end token itself."""
        return None

    def token(self, request_id: str, index: int) -> int:
        """Return token number `index` of the answer; the same one again after a preemption."""
        said = self._said[request_id]
        while len(said) <= index:
            said.append(next(self._scripts[request_id]))
        return said[index]

    def forget(self, request_id: str) -> None:
        """Drop a request that ended."""
        self._scripts.pop(request_id, None)
        self._said.pop(request_id, None)


class NamedTokens(TokenSource):
    """Base of sources that return a token for each sampling request, by its index in the answer:
    `token(request_id, index)`.

    A request resumed after a preemption continues where it was. O(decoding requests) a step.
    """

    __slots__ = ("_decoding", "_idle", "_joining", "_prefilling")

    def __init__(self) -> None:
        self._prefilling: dict[str, int] = {}
        """Number of tokens produced so far by each request that prefills."""
        self._decoding: dict[str, int] = {}
        """Index of the next token of each request that decodes."""
        self._joining: list[str] = []
        self._idle: frozenset[str] = frozenset()

    def token(self, request_id: str, index: int) -> int:
        """Return the request's token of this index."""
        raise NotImplementedError

    def begin(self, batch: Batch) -> int:
        """Apply the batch; return 1: every batch is one step, so that every token gets an index."""
        for request_id in (*batch.finished, *batch.preempted):
            self._decoding.pop(request_id, None)
            self._prefilling.pop(request_id, None)
        for admission in batch.admitted:
            known = admission.num_tokens - admission.num_prompt_tokens
            self._prefilling[admission.request_id] = known
        self._joining = [chunk.request_id for chunk in batch.chunks if chunk.samples]
        self._idle = frozenset(batch.idle)
        return 1

    def sample(self, num_steps: int) -> SampledSteps:
        """Return a token for each request that samples in the step."""
        decoding, tokens = self._decoding, []
        for request_id in self._joining:
            decoding[request_id] = self._prefilling.pop(request_id)
        for request_id, index in decoding.items():
            if request_id not in self._idle:
                tokens.append((request_id, self.token(request_id, index)))
                decoding[request_id] = index + 1
        return SampledSteps(tuple(tokens), ())


class Scripted(NamedTokens):
    """Source of the tokens of each request's script.

    A `source` with the same scripts, such as one with drafts, samples instead.
    """

    __slots__ = ("_scripts", "_source")

    def __init__(self, scripts: Scripts, source: TokenSource | None = None) -> None:
        super().__init__()
        self._scripts, self._source = scripts, source

    def token(self, request_id: str, index: int) -> int:
        return self._scripts.token(request_id, index)

    def begin(self, batch: Batch) -> int:
        self._scripts.begin(batch)
        if self._source is not None:
            return self._source.begin(batch)
        for request_id in batch.finished:
            self._scripts.forget(request_id)
        return super().begin(batch)

    def sample(self, num_steps: int) -> SampledSteps:
        return super().sample(num_steps) if self._source is None else self._source.sample(num_steps)
