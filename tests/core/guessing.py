"""Reference runner with drafts; some are right, and wrong ones are written to the cache as well."""

from collections.abc import Callable
from dataclasses import replace

from sundog.actors.core.batch import Batch
from sundog.sim.backend import SampledSteps
from tests.core.folding import Folded, ReferenceRunner

WRONG = -7
"""A token that nobody samples."""


class GuessingSource:
    """A source of tokens, named or counted; `guess` tells which drafts of (request, tokens known) are right.

    What a verified draft leaves in its slot depends on the draft: a slot that is read before the right token
    is written there is found out by the runner.
    """

    def __init__(
        self,
        runner: ReferenceRunner,
        ends: Callable[[str, int], bool],
        counts: bool,
        guess: Callable[[str, int], list[bool]],
    ) -> None:
        self.runner = runner
        self._ends, self._counts, self._guess = ends, counts, guess
        self._kept: dict[str, list[bool]] = {}
        self._sampled = SampledSteps((), ())
        self.num_verified = self.num_accepted = 0

    def begin(self, batch: Batch) -> int:
        """Verify the batch's drafts and make new ones."""
        runner, verified = self.runner, dict(batch.drafts)
        assert len(verified) == len(batch.drafts), "a request's drafts are verified once a step"
        plain = dict(runner.step(replace(batch, drafts=())))
        tokens, accepted, ended = [], [], []
        for name, token in plain.items():
            own = [token]
            if name in verified:
                own = self._verify(name, verified[name], token)
                accepted.append((name, len(own) - 1))
            heeded = [self._ends(name, each) for each in own]
            if self._counts and True in heeded:
                own = own[: heeded.index(True) + 1]
                if name in verified:
                    accepted[-1] = (name, len(own) - 1)
                ended.append(name)
            tokens += [(name, each) for each in own]
        for name in set(self._kept) - set(batch.idle):
            del self._kept[name]
        for name in plain:
            request = runner.requests[name]
            self._kept[name] = self._guess(name, len(request.tokens))
        drafts = tuple((name, len(kept)) for name, kept in self._kept.items() if kept and name in plain)
        named = None if self._counts else tuple(tokens)
        self._sampled = SampledSteps(named, tuple(ended), tuple(accepted) if self._counts else (), drafts)
        return 1

    def sample(self, num_steps: int) -> SampledSteps:
        """What the step brought."""
        return self._sampled

    def _verify(self, name: str, num_drafts: int, token: int) -> list[int]:
        """The tokens that come of the first drafts kept; every draft is written to its slot."""
        runner, request = self.runner, self.runner.requests[name]
        guesses = self._kept[name][:num_drafts]
        assert len(guesses) == num_drafts, "the runner keeps what it has told"
        self.num_verified += num_drafts
        tokens, base = [token], request.num_computed
        for right in guesses:
            if not right:
                break
            tokens.append(runner.output(name, len(request.tokens) - request.num_prompt_tokens))
            request.tokens.append(tokens[-1])
        self._write(request, base, num_drafts, len(tokens) - 1)
        self.num_accepted += len(tokens) - 1
        request.num_computed = base + len(tokens) - 1
        return tokens

    def _write(self, request: Folded, base: int, num_drafts: int, num_right: int) -> None:
        for index in range(num_drafts):
            slot = self.runner._slot(request, base + index)
            prefix = request.prefix(base + index) if index < num_right else hash((WRONG, base + index))
            self.runner.slots[slot] = prefix
