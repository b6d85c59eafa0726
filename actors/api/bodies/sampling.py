"""The fields that every generating route shares."""

from typing import Annotated

from pydantic import Field, PlainValidator

from actors.api.bodies.bounds import (
    MAX_CHOICES,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_STOP_CHARACTERS,
    MAX_STOP_TOKEN_IDS,
    MAX_STOPS,
    Int64,
    NumChoices,
    NumTokens,
    NumTokensFrom1,
    Probability,
    Stop,
    Temperature,
    ThinkingBudget,
    TokenId,
    TopK,
)
from actors.api.bodies.logits import (
    AllowedTokenIds,
    BadWords,
    Biases,
    MinP,
    NumLogprobs,
    Penalty,
    RepetitionPenalty,
)
from actors.api.bodies.repetition import RepetitionBody
from actors.api.bodies.shown import ShownBody
from actors.api.bodies.structured import ResponseFormat, StructuredOutputs
from actors.api.bodies.terms import TermsBody
from actors.api.errors import invalid
from actors.config.sampling_defaults import NEUTRAL, SamplingDefaults
from actors.core.params.constraint import Constraint
from actors.core.params.sampling import Sampling

Stops = Annotated[list[Stop], Field(max_length=MAX_STOPS)]


def as_stops(value: object) -> tuple[str, ...]:
    """`stop`, a string or a list of strings, as a tuple; raises ValueError."""
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list):
        raise ValueError("must be a string or a list of strings")
    if len(stops) > MAX_STOPS:
        raise ValueError(f"has {len(stops)} strings; at most {MAX_STOPS} are allowed")
    if not all(isinstance(each, str) for each in stops):
        raise ValueError("must be a string or a list of strings")
    if not all(stops):
        raise ValueError("must not contain the empty string")
    if (longest := max(map(len, stops), default=0)) > MAX_STOP_CHARACTERS:
        raise ValueError(f"has a string of {longest} characters; at most {MAX_STOP_CHARACTERS} are allowed")
    return tuple(stops)


class SamplingBody(ShownBody, TermsBody):
    """What completions and chat completions have in common; defaults are vLLM's."""

    n: NumChoices = 1
    max_tokens: NumTokensFrom1 | None = None
    min_tokens: NumTokens = 0
    temperature: Temperature = 1.0
    top_p: Probability = 1.0
    top_k: TopK = 0
    seed: Int64 | None = None
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
        """Of how many likeliest tokens log probabilities are wanted beside each new token's own."""
        raise NotImplementedError

    @property
    def num_echoed(self) -> int | None:
        """The same for the prompt's tokens, where nothing but `echo` asks for them."""
        return self.num_logprobs if self.echo else None

    def sampling(self, max_tokens: int | None, defaults: SamplingDefaults = NEUTRAL) -> Sampling:
        """The sampling parameters, with `max_tokens` as the route defines it; raises 400.

        What the body leaves out is as the model's own `defaults` have it.
        """
        max_tokens = defaults.max_tokens if max_tokens is None else max_tokens
        if max_tokens is not None and self.min_tokens > max_tokens:
            raise invalid(
                f"min_tokens is {self.min_tokens}: it must not exceed max_tokens ({max_tokens}).",
                "min_tokens",
            )
        if self.stream and self.prompt_logprobs:
            raise invalid(
                "prompt_logprobs is only given with a whole answer: leave out stream.", "prompt_logprobs"
            )
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
        """What the answer must look like; raises 400 if two fields say it."""
        if self.response_format is not None and self.structured_outputs is not None:
            raise invalid(
                "response_format and structured_outputs both shape the answer: leave one out.",
                "structured_outputs",
            )
        return self.response_format or self.structured_outputs

    def check_choices(self, num_prompts: int) -> None:
        """Raises 400 for more choices than one answer has."""
        if num_prompts * self.n > MAX_CHOICES:
            most = max(MAX_CHOICES // num_prompts, 1)
            raise invalid(
                f"n is {self.n} for {num_prompts} prompts: one answer has at most {MAX_CHOICES} choices, so"
                f" ask for at most {most} for each, or send fewer prompts.",
                "n",
            )
