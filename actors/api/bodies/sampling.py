"""Fields shared by generating routes: terms, sampling, and the parts of an answer to show.

Names, meanings and defaults are vLLM's: a bias beyond ±100 is clipped to it, and -1 log probabilities means
all tokens.
"""

import re
from typing import Annotated, Literal

from pydantic import Field, PlainValidator

from sundog.actors.api.bodies.parsing import (
    MAX_CHOICES,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_PATTERN_TOKENS,
    MAX_STOP_CHARACTERS,
    MAX_STOP_TOKEN_IDS,
    MAX_STOPS,
    WHOLE,
    Int64,
    JsonObject,
    ModelName,
    Name,
    NumChoices,
    NumTokens,
    NumTokensFrom1,
    Probability,
    Seconds,
    Stop,
    Temperature,
    TokenId,
    TopK,
    without_fraction,
)
from sundog.actors.api.bodies.structured import ResponseFormat, StructuredOutputs
from sundog.actors.api.errors import invalid
from sundog.actors.config.sampling_defaults import NEUTRAL, SamplingDefaults
from sundog.actors.core.params.fields import INT32_MAX, MIN_P, PENALTY, REPETITION_PENALTY, SEED, THINKING
from sundog.actors.core.params.sampling import Constraint, Repetition, Sampling
from sundog.actors.messages import Reading


class TermsBody(JsonObject):
    """Fields of every route that takes prompts."""

    model: ModelName | None = None
    request_id: Name | None = None
    priority: Int64 = 0
    cache_salt: Name | None = None
    tenant: Name | None = None
    session: Name | None = None
    slo_ttft_s: Seconds | None = None
    slo_tpot_s: Seconds | None = None
    slo_e2e_s: Seconds | None = None
    predicted_tokens: NumTokens | None = None
    kv_transfer_params: dict[str, object] | None = None


UsageWanted = Literal["never", "last", "always"]


class StreamOptions(JsonObject):
    """Options of a stream: whether chunks carry usage."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class ShownBody(JsonObject):
    """Fields of all completions for prompts and shown text; defaults are vLLM's."""

    echo: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=INT32_MAX), WHOLE] | None = None
    truncation_side: Literal["left", "right"] = "left"
    stream: bool = False
    stream_options: StreamOptions | None = None

    def reading(self) -> Reading:
        """Return how the prompt is tokenized."""
        return Reading(
            add_special_tokens=self.add_special_tokens,
            truncate_prompt_tokens=self.truncate_prompt_tokens,
            truncation_side=self.truncation_side,
        )

    def usage_wanted(self) -> UsageWanted:
        """Return which chunks of a stream carry usage; a whole answer always has it."""
        if not self.stream or self.stream_options is None or not self.stream_options.include_usage:
            return "never"
        return "always" if self.stream_options.continuous_usage_stats else "last"


MAX_TOKENS_LISTED = 2**18
"""Maximum number of tokens that a body may list: at least the vocabulary of any model."""
MAX_BIASES = 2**14
"""Maximum number of biased tokens: each bias is added in every step."""
MAX_BAD_WORDS = 1024
MAX_BAD_WORD_CHARACTERS = 1024
MOST_BIAS = 100.0
MOST_NUMBER = 1e6
TOKEN_ID = re.compile(r"-?[0-9]{1,10}")


def as_biases(value: object) -> tuple[tuple[int, float], ...]:
    """Return `logit_bias`, an object from token ids to numbers, as pairs; raises ValueError."""
    if not isinstance(value, dict):
        raise ValueError('must be an object from token ids to biases, like {"50256": -100}')
    if len(value) > MAX_BIASES:
        raise ValueError(f"has {len(value)} entries; at most {MAX_BIASES} are allowed")
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
    """Return `bad_words`, a list of strings, without duplicates; raises ValueError."""
    words = _strings(value, "a list of strings", "word", MAX_BAD_WORDS, MAX_BAD_WORD_CHARACTERS)
    return tuple(dict.fromkeys(words))


def _strings(value: object, form: str, one: str, most: int, most_characters: int) -> list[str]:
    """Return a list of at most `most` non-empty strings; raises ValueError."""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"must be {form}")
    if len(value) > most:
        raise ValueError(f"has {len(value)} {one}s; at most {most} are allowed")
    if not all(value):
        raise ValueError("must not contain the empty string")
    if (longest := max(map(len, value), default=0)) > most_characters:
        raise ValueError(f"has a {one} of {longest} characters; at most {most_characters} are allowed")
    return value


def as_count_or_off(value: object) -> int | None:
    """Return `logprobs` of a text completion, where false means none; raises ValueError."""
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
AllowedTokenIds = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_TOKENS_LISTED)]
NumLogprobs = Annotated[int, Field(ge=-1, le=INT32_MAX), WHOLE]
NumLogprobsOrOff = Annotated[
    int | None, PlainValidator(as_count_or_off, json_schema_input_type=NumLogprobs | Literal[False])
]
Penalty = Annotated[float, Field(**PENALTY.bounds)]
RepetitionPenalty = Annotated[float, Field(**REPETITION_PENALTY.bounds)]
MinP = Annotated[float, Field(**MIN_P.bounds)]
Seed = Annotated[int, Field(**SEED.bounds), WHOLE]
ThinkingBudget = Annotated[int, Field(**THINKING.bounds), WHOLE]
"""Maximum number of tokens in a section of reasoning; -1 sets no limit."""


PatternSize = Annotated[int, Field(ge=0, le=MAX_PATTERN_TOKENS), WHOLE]
REPETITION = "repetition_detection"


class RepetitionBody(JsonObject):
    """Patterns of `min_pattern_size` to `max_pattern_size` tokens, `min_count` times in a row; 0 is off."""

    max_pattern_size: PatternSize = 0
    min_pattern_size: PatternSize = 0
    min_count: PatternSize = 0

    def repetition(self) -> Repetition | None:
        """Return the stop rule for repetitions, if any; raises 400 for one that can never match."""
        if self.model_extra:
            name, known = next(iter(self.model_extra)), ", ".join(type(self).model_fields)
            raise invalid(f"{REPETITION}.{name} is unknown: give {known}.", REPETITION)
        if self.min_pattern_size > self.max_pattern_size:
            raise invalid(f"{REPETITION}.min_pattern_size must not exceed max_pattern_size.", REPETITION)
        if not self.max_pattern_size:
            return None
        if self.min_count < 2:
            raise invalid(f"{REPETITION}.min_count is {self.min_count}: it must be at least 2.", REPETITION)
        return Repetition(max(self.min_pattern_size, 1), self.max_pattern_size, self.min_count)


Stops = Annotated[list[Stop], Field(max_length=MAX_STOPS)]


def as_stops(value: object) -> tuple[str, ...]:
    """Return `stop`, a string or a list of strings, as a tuple; raises ValueError."""
    stops, form = [value] if isinstance(value, str) else value, "a string or a list of strings"
    return tuple(_strings(stops, form, "string", MAX_STOPS, MAX_STOP_CHARACTERS))


class SamplingBody(ShownBody, TermsBody):
    """Common fields of completions and chat completions; defaults are vLLM's."""

    n: NumChoices = 1
    max_tokens: NumTokensFrom1 | None = None
    min_tokens: NumTokens = 0
    temperature: Temperature = 1.0
    top_p: Probability = 1.0
    top_k: TopK = 0
    seed: Seed | None = None
    stop: Annotated[tuple[str, ...], PlainValidator(as_stops, json_schema_input_type=Stop | Stops)] = ()
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKEN_IDS)] = Field(default=[])
    ignore_eos: bool = False
    min_p: MinP = 0.0
    repetition_penalty: RepetitionPenalty = 1.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: Biases = ()
    bad_words: BadWords = ()
    allowed_token_ids: AllowedTokenIds | None = None
    prompt_logprobs: NumLogprobs | None = None
    logprob_token_ids: Annotated[list[TokenId], Field(max_length=MAX_LOGPROB_TOKEN_IDS)] = Field(default=[])
    repetition_detection: RepetitionBody | None = None
    thinking_token_budget: ThinkingBudget | None = None
    response_format: ResponseFormat = None
    structured_outputs: StructuredOutputs | None = None

    @property
    def num_logprobs(self) -> int | None:
        """Number of likeliest tokens to show with each new token; None shows none."""
        raise NotImplementedError

    @property
    def num_echoed(self) -> int | None:
        """Number of likeliest tokens to list for the prompt, if only `echo` requests them."""
        return self.num_logprobs if self.echo else None

    def sampling(self, max_tokens: int | None, defaults: SamplingDefaults = NEUTRAL) -> Sampling:
        """Return the sampling parameters, with the route's `max_tokens`; raises 400.

        Absent fields have the model's own `defaults`.
        """
        max_tokens = defaults.max_tokens if max_tokens is None else max_tokens
        if max_tokens is not None and self.min_tokens > max_tokens:
            raise invalid(
                f"min_tokens is {self.min_tokens}: it must not exceed max_tokens ({max_tokens}).",
                "min_tokens",
            )
        if self.stream and self.prompt_logprobs:
            raise invalid("prompt_logprobs cannot be combined with stream: leave one out.", "prompt_logprobs")
        given, detection = self.model_fields_set, self.repetition_detection
        temperature = self.temperature if "temperature" in given else defaults.temperature
        if self.n > 1 and temperature == 0:
            raise invalid(f"n is {self.n}: with temperature 0 all choices are equal; ask for 1.", "n")
        if self.logprob_token_ids and self.num_logprobs is None:
            raise invalid("logprob_token_ids is only allowed with logprobs.", "logprob_token_ids")
        top_k = self.top_k if "top_k" in given else defaults.top_k
        return Sampling(
            temperature=temperature,
            top_k=top_k if top_k > 0 else None,
            top_p=self.top_p if "top_p" in given else defaults.top_p,
            seed=None if self.seed == -1 else self.seed,
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            stop=self.stop,
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            min_p=self.min_p if "min_p" in given else defaults.min_p,
            repetition_penalty=(
                self.repetition_penalty if "repetition_penalty" in given else defaults.repetition_penalty
            ),
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=self.logit_bias,
            bad_words=self.bad_words,
            allowed_token_ids=None if self.allowed_token_ids is None else tuple(self.allowed_token_ids),
            logprobs=self.num_logprobs,
            prompt_logprobs=self.num_echoed if self.prompt_logprobs is None else self.prompt_logprobs,
            logprob_token_ids=tuple(self.logprob_token_ids),
            repetition=None if detection is None else detection.repetition(),
            include_stop_str_in_output=self.include_stop_str_in_output,
            skip_special_tokens=self.skip_special_tokens,
            spaces_between_special_tokens=self.spaces_between_special_tokens,
            constraint=self._constraint(),
            thinking_token_budget=None if self.thinking_token_budget == -1 else self.thinking_token_budget,
        )

    def _constraint(self) -> Constraint | None:
        """Return the required form of the answer; raises 400 if two fields set one."""
        if self.response_format is not None and self.structured_outputs is not None:
            raise invalid(
                "response_format and structured_outputs both shape the answer: leave one out.",
                "structured_outputs",
            )
        return self.response_format or self.structured_outputs

    def check_choices(self, num_prompts: int) -> None:
        """Raise 400 for more choices than one answer may have."""
        if num_prompts * self.n > MAX_CHOICES:
            most = max(MAX_CHOICES // num_prompts, 1)
            raise invalid(
                f"n is {self.n} for {num_prompts} prompts: one answer has at most {MAX_CHOICES} choices, so"
                f" ask for at most {most} for each, or send fewer prompts.",
                "n",
            )


SHARED = frozenset({*TermsBody.model_fields, "chat_template_kwargs"}) - {"model", "kv_transfer_params"}
"""Fields passed on from every shape: the terms of a request, and the template's arguments."""

SAMPLED = SHARED | {
    "allowed_token_ids",
    "bad_words",
    "frequency_penalty",
    "ignore_eos",
    "include_reasoning",
    "include_stop_str_in_output",
    "logit_bias",
    "min_p",
    "min_tokens",
    "presence_penalty",
    "repetition_detection",
    "repetition_penalty",
    "seed",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "stop",
    "stop_token_ids",
    "structured_outputs",
    "thinking_token_budget",
    "top_k",
}
"""Fields passed on from OpenAI's responses: those of every shape, and sampling."""
