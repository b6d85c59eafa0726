"""The types of fields: every number in a body has a lower and an upper bound, every list a longest length.

So nothing behind the API meets a number that does not fit a register or a float32. The bounds lie
beyond what any model has; narrower ones, such as the model's context, are checked where they are
known.
"""

from typing import Annotated

from pydantic import BeforeValidator, Field

from actors.front.bounds import MAX_CHOICES as MAX_CHOICES_OF_PROMPT

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
MAX_STOPS = 64
MAX_STOP_CHARACTERS = 1024
MAX_STOP_TOKEN_IDS = 4096
MAX_PROMPTS = 1024
MAX_LOGPROB_TOKEN_IDS = 1024
MAX_PATTERN_TOKENS = 1024
"""Compared after every token, as often as they are to be repeated."""
MAX_CHOICES = 1024
"""Of one answer: choices of a prompt times prompts."""
MAX_PROMPT_TOKENS = 2**22
MAX_MESSAGES = 2**14
MAX_PARTS = 2**14


def without_fraction(value: object) -> object:
    """A number that is whole as an integer; all else as it is."""
    return int(value) if type(value) is float and value.is_integer() else value


WHOLE = BeforeValidator(without_fraction)
"""16.0 is an integer in JSON, too: YAML's 1e3 becomes 1000.0."""
NumChoices = Annotated[int, Field(ge=1, le=MAX_CHOICES_OF_PROMPT), WHOLE]
TokenId = Annotated[int, Field(ge=0, le=INT32_MAX)]
NumTokens = Annotated[int, Field(ge=0, le=INT32_MAX), WHOLE]
NumTokensFrom1 = Annotated[int, Field(ge=1, le=INT32_MAX), WHOLE]
Seconds = Annotated[float, Field(ge=0, le=1e9)]
Int64 = Annotated[int, Field(ge=-INT64_MAX - 1, le=INT64_MAX), WHOLE]
Temperature = Annotated[float, Field(ge=0, le=2)]
Probability = Annotated[float, Field(gt=0, le=1)]
ThinkingBudget = Annotated[int, Field(ge=-1, le=INT32_MAX), WHOLE]
"""-1 is no bound."""
TopK = Annotated[int, Field(ge=-1, le=INT32_MAX), WHOLE]
Name = Annotated[str, Field(min_length=1, max_length=1024)]
ModelName = Annotated[str, Field(max_length=1024)]
"""Empty, as some clients send it, it means the served model."""
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
"""Each token is compared with every stop string."""
TokenIds = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_PROMPT_TOKENS)]
