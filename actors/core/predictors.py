"""Predictors of the lengths of answers, called once per request before it reaches the engine.

Law: a prediction orders requests and ends none. A predictor is a frozen object with a pure function.
"""

from sundog.actors.core.chance import drawn
from sundog.actors.core.params.fields import INT64_MAX
from sundog.actors.core.policies.answers import WrongAnswer, exact, printed
from sundog.actors.core.policies.guard import ANY, Guard
from sundog.actors.core.records import dataclass


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A request as a predictor sees it, before it reaches the engine.

    Args:
        request_id: Id of the request.
        num_prompt_tokens: Number of prompt tokens.
        prompt_token_ids: The prompt; None if tokens are only counted, as in a replay.
        tenant: Tenant of the request, if any.
        session: Conversation that the request belongs to, if any.
        priority: Priority that the client gave; smaller is more urgent.
        num_output_tokens: The true length in a replay, for predictors with a known error; None on a server.
        seed: Seed of the run, for `random`.

    Example:
        >>> import sundog
        >>> sundog.Unanswered("r1", num_prompt_tokens=12).num_prompt_tokens
        12
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
        """Return a number in [0, 1) that depends only on the run's seed, the request and this key.

        Args:
            *key: Texts or numbers.

        Returns:
            The same number for the same key, however often it is called.
        """
        return drawn(self.seed, ["predictor", self.request_id, *key])


class LengthPredictor:
    """Base of predictors of the lengths of answers. `import sundog` calls it `Predictor`.

    Example:
        >>> import sundog
        >>> class AsLongAsThePrompt(sundog.Predictor):
        ...     def predict(self, request):
        ...         return request.num_prompt_tokens
        >>> AsLongAsThePrompt().predict(sundog.Unanswered("r1", num_prompt_tokens=12))
        12
    """

    def predict(self, request: Unanswered) -> int | None:
        """Predict the length of an answer.

        Args:
            request: The request, before it reaches the engine.

        Returns:
            Number of output tokens, at least 1; None without a prediction.
        """
        return None


class GuardedPredictor(Guard[LengthPredictor], LengthPredictor):
    """Guard of a user's predictor; after a failure with a fallback, requests continue without predictions."""

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
