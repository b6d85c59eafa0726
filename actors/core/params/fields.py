"""The table of sampling fields: the bounds of each, in numbers and in words, and what honours it.

Bodies and models' own defaults take the bounds of HTTP from it, the front those of the engine, and
`docs/sampling.md` its words. A field that a client may send fails a test until it has a row here and in the
page, and examples that are sent over HTTP.
"""

import enum
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from sundog.actors.core.params.sampling import Sampling

INT32_MAX = 2**31 - 1
INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1


class HonouredBy(enum.Enum):
    """The part that a field is for."""

    FRONT = "front"
    SCHEDULER = "scheduler"
    SAMPLER = "sampler"
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers that the engine takes, in words too, and the first and last that HTTP takes if they differ.

    The least itself is `excluded` where that is said.
    """

    least: float
    most: float
    advice: str
    http: tuple[float, float] | None = None
    excluded: bool = False

    def holds(self, value: float) -> bool:
        """True for a number within the range; NaN is in none."""
        return self.least <= value <= self.most and not (self.excluded and value == self.least)

    @property
    def bounds(self) -> dict[str, float]:
        """The bounds over HTTP, under the names of JSON Schema's validators."""
        least, most = self.http or (self.least, self.most)
        return {"gt" if self.excluded else "ge": least, "le": most}


def _integers(least: int, most: int, http: tuple[int, int] | None = None) -> Range:
    return Range(least, most, f"give an integer from {least} to {most}", http)


@dataclass(frozen=True, slots=True)
class SamplingField:
    """A field of a request, as a client and the page about sampling see it."""

    honoured_by: HonouredBy
    default: str
    bounds: str
    effect: str
    range: Range | None = None
    """The range of a field that is a number."""


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
        "the last token of a word is banned when the tokens before it have just been said",
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
        GRAMMAR, "–", "`docs/structured.md`", "holds the answer to JSON, a schema or a structural tag"
    ),
    "structured_outputs": SamplingField(
        *(GRAMMAR, "–", "`docs/structured.md`"),
        "holds the answer to a schema, an expression, choices or a grammar",
    ),
}


def out_of_range(sampling: Sampling) -> Iterator[tuple[str, object, str]]:
    """Yield each number that is beyond its bounds, by its name and with what would do.

    The number is typed as an object, for compiled code would make a float of it, and huge integers fit none.
    """
    for name, field in SAMPLING_FIELDS.items():
        if field.range is None:
            continue
        value = getattr(sampling, name)
        if value is not None and not field.range.holds(value):
            yield name, value, field.range.advice
