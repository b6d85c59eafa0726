"""Anthropic's `thinking`: whether the model thinks aloud, and how many tokens of it there may be."""

from typing import Annotated, Literal

from pydantic import Field

from actors.api.bodies.bounds import INT32_MAX, WHOLE
from actors.api.bodies.parsing import JsonObject
from actors.api.errors import invalid

LEAST_BUDGET = 1024
FIELD = "thinking.budget_tokens"


class Thinking(JsonObject):
    """Whether the model thinks aloud; `budget_tokens` goes with the type enabled alone."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=LEAST_BUDGET, le=INT32_MAX), WHOLE] | None = None

    def budget(self, max_tokens: int) -> int | None:
        """The most tokens of thinking, None without a bound.

        Raises 400 where the answer has no room behind them, and where one is missing or has no meaning.
        """
        budget = self.budget_tokens
        if self.type != "enabled":
            if budget is not None:
                raise invalid(f'{FIELD} goes with the type "enabled" alone: leave it out.', FIELD)
            return None
        if budget is None:
            raise invalid(f'{FIELD} is required with the type "enabled".', FIELD)
        if budget >= max_tokens:
            raise invalid(f"{FIELD} is {budget}: it must be less than max_tokens ({max_tokens}).", FIELD)
        return budget
