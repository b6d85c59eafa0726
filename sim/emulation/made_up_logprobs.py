"""Log probabilities for an emulated server, which has no model: made up, the same for every token.

The token that is said has probability 1/2, rank 1, and stands first among the likeliest; those behind it are
the tokens with the next ids, with 1/4, 1/8 and so on. So a client can be tried, and they are not taken for a
model's.
"""

from dataclasses import replace
from math import log

from actors.core.batch import Admission, Batch
from actors.core.params.logprobs import PromptLogprobs, TokenLogprobs
from sim.backend import SampledSteps, TokenSource

HALF = log(0.5)


class MadeUpLogprobs(TokenSource):
    """A TokenSource that gives the named tokens of another, with log probabilities where they are wanted.

    O(requests that want some) a step.
    """

    __slots__ = ("_due", "_prompts", "_source", "_vocab_size", "_wanted")

    def __init__(self, source: TokenSource, vocab_size: int) -> None:
        self._source = source
        self._vocab_size = vocab_size
        self._wanted: dict[str, tuple[int, ...] | int] = {}
        self._prompts: dict[str, Admission] = {}
        """Of requests that want their prompt's, until it is computed."""
        self._due: list[Admission] = []

    def begin(self, batch: Batch) -> int:
        """Note which requests want log probabilities."""
        if self._wanted or self._prompts:
            for request_id in (*batch.finished, *batch.preempted):
                self._wanted.pop(request_id, None)
                self._prompts.pop(request_id, None)
        for admission in batch.admitted:
            sampling = admission.sampling
            if sampling.logprobs is not None:
                self._wanted[admission.request_id] = sampling.logprob_token_ids or sampling.logprobs
            if sampling.prompt_logprobs is not None and admission.num_tokens == admission.num_prompt_tokens:
                self._prompts[admission.request_id] = admission
        if self._prompts:
            done = [chunk.request_id for chunk in batch.chunks if chunk.samples]
            self._due = [self._prompts.pop(name) for name in done if name in self._prompts]
        return self._source.begin(batch)

    def sample(self, num_steps: int) -> SampledSteps:
        """The other's tokens, and what is wanted beside them."""
        sampled, wanted = self._source.sample(num_steps), self._wanted
        if not (wanted or self._due):
            return sampled
        tokens = [(name, token) for name, token in sampled.tokens or () if name in wanted]
        due, self._due = self._due, []
        return replace(
            sampled,
            logprobs=tuple((name, self._made_up(token, wanted[name])) for name, token in tokens),
            prompt_logprobs=tuple(map(self._prompt, due)),
        )

    def _prompt(self, admission: Admission) -> PromptLogprobs:
        num_top, token_ids = admission.sampling.prompt_logprobs or 0, admission.token_ids or ()
        tokens = tuple(self._made_up(token, num_top) for token in token_ids[1:])
        return PromptLogprobs(admission.request_id, 1, tokens)

    def _made_up(self, token: int, likely: int | tuple[int, ...]) -> TokenLogprobs:
        size = self._vocab_size
        if isinstance(likely, int):
            likely = tuple([(token + rank) % size for rank in range(min(likely, size))])
        return TokenLogprobs(
            token, HALF, 1, likely, tuple([((each - token) % size + 1) * HALF for each in likely])
        )
