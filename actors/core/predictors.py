"""Predictors of answers' lengths: asked in front of the engine, once for each request, for policies.

Law: a prediction orders requests and ends none. A predictor is a frozen object of a pure function.
"""

from dataclasses import dataclass

from sundog.actors.core.chance import drawn
from sundog.actors.core.params.fields import INT64_MAX
from sundog.actors.core.policies.answers import WrongAnswer, exact, printed
from sundog.actors.core.policies.guard import ANY, Guard


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A request whose answer is to be guessed.

    `prompt_token_ids` is None where tokens are only counted. `num_output_tokens` is the truth where a trace
    tells it, for predictors that are wrong in a known way; None when served.
    """

    request_id: str
    num_prompt_tokens: int
    prompt_token_ids: tuple[int, ...] | None = None
    tenant: str | None = None
    session: str | None = None
    priority: int = 0
    num_output_tokens: int | None = None
    seed: int = 0

    def random(self, *key: str | int) -> float:
        """A number from 0 to 1, 1 excluded, that follows from the run's seed, the request and this key."""
        return drawn(self.seed, ["predictor", self.request_id, *key])


class LengthPredictor:
    """A subclass guesses the lengths of answers."""

    def predict(self, request: Unanswered) -> int | None:
        """The answer's tokens, at least 1; None without a guess."""
        return None


class GuardedPredictor(Guard[LengthPredictor], LengthPredictor):
    """A user's predictor; when it fails where it has a fallback, requests go on without predictions."""

    word = "predictor"

    def predict(self, request: Unanswered) -> int | None:
        if self.failure is None:
            try:
                return _exact_length(self._timed(self.inner.predict, request))
            except ANY as error:
                self._failed("predict", request.request_id, error)
        return None


def _exact_length(length: object) -> int | None:
    found = None if length is None or isinstance(length, bool | str | tuple) else exact(length)
    if length is not None and not (isinstance(found, int) and 1 <= found <= INT64_MAX):
        raise WrongAnswer(
            f"returned {printed(length)}: it must be a whole number from 1 to 2^63 - 1, or None"
        )
    return found if isinstance(found, int) else None
