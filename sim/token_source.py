"""Where the tokens of a simulated run come from: an oracle of a trace, or texts that are handed in."""

from collections.abc import Sequence
from dataclasses import dataclass

from mypy_extensions import mypyc_attr

from actors.core.batch import Batch, StepResult
from actors.core.params.logprobs import PromptLogprobs, TokenLogprobs


@dataclass(slots=True)
class Sampled:
    """What some steps sampled: `tokens` None where they are only counted, else of one step.

    `ended` names the requests whose token in the last step was the end token. The rest is as in a StepResult.
    """

    tokens: tuple[tuple[str, int], ...] | None
    ended: tuple[str, ...]
    accepted: tuple[tuple[str, int], ...] = ()
    drafts: tuple[tuple[str, int], ...] = ()
    logprobs: tuple[tuple[str, TokenLogprobs], ...] = ()
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()

    def result(self, step: int, end_times_s: Sequence[float]) -> StepResult:
        """What the backend answers."""
        return StepResult(
            step,
            end_times_s,
            self.tokens,
            self.ended,
            (),
            self.logprobs,
            self.prompt_logprobs,
            self.accepted,
            self.drafts,
        )


@mypyc_attr(allow_interpreted_subclasses=True)
class TokenSource:
    """Where the tokens of a run come from, and with them the end of each request."""

    __slots__ = ()

    def begin(self, batch: Batch) -> int:
        """Fold the diff in; the most steps to do: through the first in which a request ends."""
        raise NotImplementedError

    def sample(self, num_steps: int) -> Sampled:
        """Tokens of the `num_steps` steps that were done, at most what `begin` allowed."""
        raise NotImplementedError
