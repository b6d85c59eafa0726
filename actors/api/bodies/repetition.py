"""`repetition_detection`: when an answer that repeats itself ends; names and meanings are vLLM's."""

from typing import Annotated

from pydantic import Field

from actors.api.bodies.bounds import MAX_PATTERN_TOKENS, WHOLE
from actors.api.bodies.parsing import JsonObject
from actors.api.errors import invalid
from actors.core.params.repetition import Repetition

Size = Annotated[int, Field(ge=0, le=MAX_PATTERN_TOKENS), WHOLE]
FIELD = "repetition_detection"


class RepetitionBody(JsonObject):
    """Patterns of `min_pattern_size` to `max_pattern_size` tokens, `min_count` times in a row; 0 is off."""

    max_pattern_size: Size = 0
    min_pattern_size: Size = 0
    min_count: Size = 0

    def repetition(self) -> Repetition | None:
        """What ends the answer, if anything; raises 400 for what could never be found."""
        if self.model_extra:
            name, known = next(iter(self.model_extra)), ", ".join(type(self).model_fields)
            raise invalid(f"{FIELD}.{name} is unknown: give {known}.", FIELD)
        if self.min_pattern_size > self.max_pattern_size:
            raise invalid(f"{FIELD}.min_pattern_size must not exceed max_pattern_size.", FIELD)
        if not self.max_pattern_size:
            return None
        if self.min_count < 2:
            raise invalid(f"{FIELD}.min_count is {self.min_count}: it must be at least 2.", FIELD)
        return Repetition(max(self.min_pattern_size, 1), self.max_pattern_size, self.min_count)
