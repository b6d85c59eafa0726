"""The fields that bend single logits: `logit_bias`, `bad_words`, `allowed_token_ids`; and log probabilities.

Meanings are vLLM's: a bias beyond ±100 is one of ±100, and -1 log probabilities are those of all tokens.
"""

import re
from typing import Annotated, Literal

from pydantic import Field, PlainValidator

from actors.api.bodies.bounds import INT32_MAX, WHOLE, TokenId, without_fraction

MAX_TOKENS = 2**18
"""At least the vocabulary of any model."""
MAX_BAD_WORDS = 1024
MAX_BAD_WORD_CHARACTERS = 1024
MOST_BIAS = 100.0
MOST_NUMBER = 1e6
TOKEN_ID = re.compile(r"-?[0-9]{1,10}")


def as_biases(value: object) -> tuple[tuple[int, float], ...]:
    """`logit_bias`, an object from token ids to numbers, as pairs; raises ValueError."""
    if not isinstance(value, dict):
        raise ValueError('must be an object from token ids to biases, like {"50256": -100}')
    if len(value) > MAX_TOKENS:
        raise ValueError(f"has {len(value)} entries; at most {MAX_TOKENS} are allowed")
    biases: dict[int, float] = {}
    for name, bias in value.items():
        if not TOKEN_ID.fullmatch(name):
            raise ValueError(f"has the key {name[:40]!r}, which is no token id")
        is_number = isinstance(bias, int | float) and not isinstance(bias, bool)
        if not is_number or not -MOST_NUMBER <= bias <= MOST_NUMBER:
            raise ValueError(f"must have a number for token {name}, from -100 to 100")
        if int(name) in biases:
            raise ValueError(f"names token {int(name)} twice")
        biases[int(name)] = min(max(float(bias), -MOST_BIAS), MOST_BIAS)
    return tuple(biases.items())


def as_bad_words(value: object) -> tuple[str, ...]:
    """`bad_words`, a list of strings, each once; raises ValueError."""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError("must be a list of strings")
    if len(value) > MAX_BAD_WORDS:
        raise ValueError(f"has {len(value)} words; at most {MAX_BAD_WORDS} are allowed")
    if not all(value):
        raise ValueError("must not contain the empty string")
    if (longest := max(map(len, value), default=0)) > MAX_BAD_WORD_CHARACTERS:
        raise ValueError(f"has a word of {longest} characters; at most {MAX_BAD_WORD_CHARACTERS} are allowed")
    return tuple(dict.fromkeys(value))


def as_count_or_off(value: object) -> int | None:
    """`logprobs` of a text completion, where false asks for none; raises ValueError."""
    if value is False:
        return None
    value = without_fraction(value)
    if type(value) is not int or not -1 <= value <= INT32_MAX:
        raise ValueError("must be an integer of at least 0, or -1 for all tokens")
    return value


Bias = Annotated[float, Field(ge=-MOST_NUMBER, le=MOST_NUMBER)]
BadWord = Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_CHARACTERS)]
Biases = Annotated[
    tuple[tuple[int, float], ...], PlainValidator(as_biases, json_schema_input_type=dict[str, Bias])
]
BadWords = Annotated[
    tuple[str, ...],
    PlainValidator(
        as_bad_words, json_schema_input_type=Annotated[list[BadWord], Field(max_length=MAX_BAD_WORDS)]
    ),
]
AllowedTokenIds = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_TOKENS)]
NumLogprobs = Annotated[int, Field(ge=-1, le=INT32_MAX), WHOLE]
NumLogprobsOrOff = Annotated[
    int | None, PlainValidator(as_count_or_off, json_schema_input_type=NumLogprobs | Literal[False])
]
Penalty = Annotated[float, Field(ge=-2, le=2)]
RepetitionPenalty = Annotated[float, Field(ge=1e-6, le=1e6)]
MinP = Annotated[float, Field(ge=0, le=1)]
