"""Table of sampling fields: the bounds of each, in numbers and words, and the part that honours it.

Request bodies and models' own defaults use the bounds of HTTP, the front those of the engine, and
docs/sampling.md the words. A field that a client may send fails a test until it has a row here and in that
page, and examples that are sent over HTTP.
"""

import enum
import sys
from collections.abc import Iterator

from sundog.actors.core.params.sampling import Sampling
from sundog.actors.core.records import dataclass

INT32_MAX = 2**31 - 1
INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1


class HonouredBy(enum.Enum):
    """Part of the server that a field is for."""

    FRONT = "front"
    SCHEDULER = "scheduler"
    SAMPLER = "sampler"
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers that the engine accepts, also in words, and the bounds over HTTP if they differ.

    With `excluded` the lower bound itself is not accepted.
    """

    least: float
    most: float
    advice: str
    http: tuple[float, float] | None = None
    excluded: bool = False

    def holds(self, value: float) -> bool:
        """Return whether the number is within the range; NaN never is."""
        return self.least <= value <= self.most and not (self.excluded and value == self.least)

    @property
    def bounds(self) -> dict[str, float]:
        """Bounds over HTTP, under the names of JSON Schema's validators."""
        least, most = self.http or (self.least, self.most)
        return {"gt" if self.excluded else "ge": least, "le": most}


def _integers(least: int, most: int, http: tuple[int, int] | None = None) -> Range:
    return Range(least, most, f"give an integer from {least} to {most}", http)


@dataclass(frozen=True, slots=True)
class SamplingField:
    """Field of a request as described to clients and in docs/sampling.md."""

    honoured_by: HonouredBy
    default: str
    bounds: str
    effect: str
    range: Range | None = None
    """Range of a numeric field; None for others."""


TEMPERATURE = Range(0.0, sys.float_info.max, "give a finite number, at least 0", (0, 2))
TOP_P = Range(0, 1, "give a number above 0, at most 1", excluded=True)
MIN_P = Range(0, 1, "give a number from 0 to 1")
REPETITION_PENALTY = Range(1e-6, 1e6, "give a number from 1e-6 to 1e6")
PENALTY = Range(-2, 2, "give a number from -2 to 2")
TOP_K = _integers(1, INT64_MAX, (-1, INT32_MAX))
SEED = _integers(INT64_MIN, INT64_MAX)
MAX_TOKENS = _integers(1, INT64_MAX, (1, INT32_MAX))
MIN_TOKENS = _integers(0, INT64_MAX, (0, INT32_MAX))
THINKING = _integers(0, INT64_MAX, (-1, INT32_MAX))

FRONT, SCHEDULER, SAMPLER, GRAMMAR = HonouredBy

SAMPLING_FIELDS: dict[str, SamplingField] = {
    "temperature": SamplingField(
        SAMPLER,
        "1",
        bounds="0 to 2",
        effect="divides the logits; below 1e-5 the likeliest token is taken, and the filters below are off",
        range=TEMPERATURE,
    ),
    "top_k": SamplingField(
        SAMPLER,
        "0",
        bounds="-1, 0: off",
        effect="leaves the k likeliest tokens, and all that are as likely as the last of them",
        range=TOP_K,
    ),
    "top_p": SamplingField(
        SAMPLER,
        "1",
        bounds="above 0, up to 1",
        effect="leaves the smallest set of likeliest tokens that weighs p",
        range=TOP_P,
    ),
    "min_p": SamplingField(
        SAMPLER,
        "0",
        bounds="0 to 1",
        effect="leaves tokens at least `min_p` times as likely as the likeliest",
        range=MIN_P,
    ),
    "seed": SamplingField(SAMPLER, "–", bounds="64 bits; -1: none", effect="fixes the draws", range=SEED),
    "repetition_penalty": SamplingField(
        SAMPLER,
        "1",
        bounds="1e-6 to 1e6",
        effect="of tokens in the prompt or the answer: divides logits above 0, multiplies the rest",
        range=REPETITION_PENALTY,
    ),
    "frequency_penalty": SamplingField(
        SAMPLER,
        "0",
        bounds="-2 to 2",
        effect="subtracted from a token's logit once for each time the answer has it",
        range=PENALTY,
    ),
    "presence_penalty": SamplingField(
        SAMPLER, "0", bounds="-2 to 2", effect="subtracted once if the answer has the token", range=PENALTY
    ),
    "logit_bias": SamplingField(SAMPLER, "{}", "ids as strings", "added to logits; beyond ±100 it is ±100"),
    "allowed_token_ids": SamplingField(SAMPLER, "–", "at least one", "nothing else is said"),
    "bad_words": SamplingField(
        *(SAMPLER, "[]", "1,024 words"),
        "the last token of a word is banned when the tokens before it have just been generated",
    ),
    "max_tokens": SamplingField(
        SCHEDULER,
        "16; of a chat –",
        bounds="1 at least, 0 with `echo`",
        effect="ends the answer after that many tokens; a chat may call it `max_completion_tokens`",
        range=MAX_TOKENS,
    ),
    "min_tokens": SamplingField(
        SCHEDULER,
        "0",
        bounds="up to `max_tokens`",
        effect="until then no end token, no stop token, and no stop string ends the answer",
        range=MIN_TOKENS,
    ),
    "stop": SamplingField(
        FRONT, "[]", "64 texts of 1,024 characters", "ends the answer before the first of these texts"
    ),
    "stop_token_ids": SamplingField(SCHEDULER, "[]", "4,096 ids", "ends the answer with any of these tokens"),
    "ignore_eos": SamplingField(
        SCHEDULER, "false", "–", "the model's own end tokens end nothing, and have no text"
    ),
    "repetition_detection": SamplingField(
        *(FRONT, "–", "patterns of 1,024 tokens"),
        "ends an answer in which a pattern of `min_pattern_size` to `max_pattern_size` tokens comes"
        " `min_count` times in a row",
    ),
    "thinking_token_budget": SamplingField(
        SAMPLER,
        "–",
        bounds="-1: none",
        effect="ends each section of reasoning after that many tokens",
        range=THINKING,
    ),
    "logprobs": SamplingField(
        *(SAMPLER, "–", "`--max-logprobs`, 20"),
        "log probabilities of the answer's tokens and of the likeliest ones; `top_logprobs` of a chat",
    ),
    "logprob_token_ids": SamplingField(
        SAMPLER, "[]", "1,024 ids", "with `logprobs`, those of these tokens instead of the likeliest"
    ),
    "prompt_logprobs": SamplingField(
        SAMPLER, "–", "the same", "those of the prompt's tokens; not with `stream`"
    ),
    "response_format": SamplingField(
        GRAMMAR, "–", "`docs/structured.md`", "restricts the answer to JSON, a schema or a structural tag"
    ),
    "structured_outputs": SamplingField(
        *(GRAMMAR, "–", "`docs/structured.md`"),
        "restricts the answer to a schema, an expression, choices or a grammar",
    ),
}


def out_of_range(sampling: Sampling) -> Iterator[tuple[str, object, str]]:
    """Yield the name, the value and the accepted range of each number that is out of bounds.

    The number is typed as an object, because compiled code would make it a float, and huge integers fit none.
    """
    for name, field in SAMPLING_FIELDS.items():
        if field.range is None:
            continue
        value = getattr(sampling, name)
        if value is not None and not field.range.holds(value):
            yield name, value, field.range.advice
