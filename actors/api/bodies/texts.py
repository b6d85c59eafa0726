"""Bodies with texts or token ids: POST /v1/completions, /v1/embeddings, /score and /rerank."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PlainValidator

from sundog.actors.api.bodies.parsing import (
    MAX_PROMPT_TOKENS,
    MAX_PROMPTS,
    WHOLE,
    JsonObject,
    NumTokens,
    TokenIds,
)
from sundog.actors.api.bodies.sampling import NumLogprobsOrOff, SamplingBody, TermsBody
from sundog.actors.api.errors import invalid
from sundog.actors.config.vector_sizes import VectorSizes
from sundog.actors.core.params.fields import INT32_MAX
from sundog.actors.core.params.sampling import Pooling, Sampling
from sundog.actors.messages import Reading

DEFAULT_MAX_TOKENS = 16

TextPrompt = str | tuple[int, ...]
PromptInput = (
    Annotated[str, Field(min_length=1)]
    | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
    | TokenIds
    | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS)]
)


def as_prompts(value: object) -> tuple[TextPrompt, ...]:
    """Parse `prompt` in its four forms (text, texts, ids, lists of ids); raises ValueError."""
    if isinstance(value, str) and value:
        return (value,)
    if isinstance(value, list) and value:
        if type(value[0]) is int:
            return (_as_ids(value),)
        if len(value) > MAX_PROMPTS:
            raise ValueError(f"has {len(value)} prompts; at most {MAX_PROMPTS} are allowed")
        if all(isinstance(each, str) for each in value):
            return tuple(value)
        if all(isinstance(each, list) and each for each in value):
            return tuple(_as_ids(each) for each in value)
    raise ValueError(
        "must be a string, a list of strings, a list of token ids, or a list of lists of token"
        " ids, neither the string nor a list empty"
    )


def _as_ids(values: list[object]) -> tuple[int, ...]:
    if len(values) > MAX_PROMPT_TOKENS:
        raise ValueError(f"has {len(values)} token ids; at most {MAX_PROMPT_TOKENS} are allowed")
    ids = tuple(each for each in values if type(each) is int and 0 <= each <= INT32_MAX)
    if len(ids) < len(values):
        raise ValueError(f"has a list with something other than token ids from 0 to {INT32_MAX}")
    return ids


class CompletionBody(SamplingBody):
    """Body of POST /v1/completions."""

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "include_reasoning": (True,),
        "reasoning_effort": (),
        "parallel_tool_calls": (True, False),
        "tool_choice": ("none", "auto"),
        "tools": ([],),
        "top_logprobs": (0,),
    }

    prompt: Annotated[tuple[TextPrompt, ...], PlainValidator(as_prompts, json_schema_input_type=PromptInput)]
    max_tokens: NumTokens = DEFAULT_MAX_TOKENS
    logprobs: NumLogprobsOrOff = None

    @property
    def token_limit(self) -> int:
        """Number of tokens to generate: an echo alone takes one, which is not shown."""
        if self.max_tokens == 0 and not self.echo:
            raise invalid("max_tokens is 0: ask for at least 1, or for echo.", "max_tokens")
        return max(self.max_tokens, 1)

    @property
    def num_logprobs(self) -> int | None:
        """Number of likeliest tokens to list, as `logprobs` requests."""
        return self.logprobs


class TruncatedBody(JsonObject):
    """Fields for the truncation of texts before embedding."""

    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=INT32_MAX), WHOLE] | None = None
    truncation_side: Literal["left", "right"] = "right"

    def reading(self) -> Reading:
        """Return how texts are tokenized and cut."""
        return Reading(
            truncate_prompt_tokens=self.truncate_prompt_tokens, truncation_side=self.truncation_side
        )


class EmbeddingBody(TruncatedBody, TermsBody):
    """Texts or token ids to embed; defaults are vLLM's."""

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "chat_template": (),
        "embed_dtype": ("float32",),
        "endianness": ("native", "little"),
        "messages": (),
        "mm_processor_kwargs": ({},),
        "normalize": (),
        "padding": ("do_not_pad",),
        "task": ("embed",),
    }

    input: Annotated[tuple[TextPrompt, ...], PlainValidator(as_prompts, json_schema_input_type=PromptInput)]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1, le=INT32_MAX), WHOLE] | None = None
    use_activation: bool | None = None
    add_special_tokens: bool | None = None

    def reading(self) -> Reading:
        """Return how texts are tokenized."""
        return replace(super().reading(), add_special_tokens=self.add_special_tokens)

    def sampling(self, sizes: VectorSizes) -> Sampling:
        """Return the engine's parameters; raises 400 for a vector length that the model lacks."""
        if self.dimensions is not None and (reason := sizes.why_not(self.dimensions)):
            raise invalid(f"dimensions is {self.dimensions}: {reason}.", "dimensions")
        pooling = Pooling(self.dimensions, self.use_activation)
        return Sampling(temperature=0.0, max_tokens=1, ignore_eos=True, pooling=pooling)


UNSUPPORTED_IN_SCORES: Mapping[str, tuple[object, ...]] = {
    "chat_template_kwargs": ({},),
    "instruction": (),
    "max_tokens_per_doc": (0,),
    "max_tokens_per_query": (0,),
    "mm_processor_kwargs": ({},),
}
SCORES = ("/score", "/v1/score")
RERANKS = ("/rerank", "/v1/rerank", "/v2/rerank")
"""Paths at which vLLM scores and reranks."""
PAIRS = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))
"""Names of the two sides of a text pair, as in vLLM."""
RAW = Sampling(temperature=0.0, max_tokens=1, ignore_eos=True, pooling=Pooling(None, None))

TextsInput = str | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]


def as_text(value: object) -> str:
    """Return the value if it is a text; raises ValueError."""
    if not isinstance(value, str):
        raise ValueError("must be a string")
    return value


def as_texts(value: object) -> tuple[str, ...]:
    """Return a text or a list of them as a tuple; raises ValueError."""
    texts = [value] if isinstance(value, str) else value
    if isinstance(texts, list) and texts and all(isinstance(each, str) for each in texts):
        if len(texts) > MAX_PROMPTS:
            raise ValueError(f"has {len(texts)} texts; at most {MAX_PROMPTS} are allowed")
        return tuple(texts)
    raise ValueError("must be a string or a list of strings that is not empty")


Text = Annotated[str, PlainValidator(as_text, json_schema_input_type=str)]
Texts = Annotated[tuple[str, ...], PlainValidator(as_texts, json_schema_input_type=TextsInput)]


class ScoreBody(TruncatedBody, TermsBody):
    """Body for scoring text pairs, 1:N or N:N."""

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = UNSUPPORTED_IN_SCORES

    queries: Texts | None = None
    documents: Texts | None = None
    items: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None
    text_1: Texts | None = None
    text_2: Texts | None = None

    def sides(self) -> tuple[tuple[str, ...], tuple[str, ...], str]:
        """Return both sides, and the name of the second; if the first has one text, it is paired with all.
        Raises 400.
        """
        for first, second in PAIRS:
            left, right = getattr(self, first), getattr(self, second)
            if left is None or right is None:
                continue
            names = dict.fromkeys(name for pair in PAIRS for name in pair)
            more = next((name for name in names if name not in (first, second) and getattr(self, name)), None)
            if more is not None:
                raise invalid(f"{first} and {second} are the two sides to compare: leave out {more}.", more)
            if len(left) not in (1, len(right)):
                sizes = f"{first} has {len(left)} texts and {second} {len(right)}"
                message = f"{sizes}: give one text, or the same number on both sides."
                raise invalid(message, first)
            return left, right, second
        named = ", ".join(" and ".join(pair) for pair in PAIRS)
        raise invalid(f"Give two sides to compare: {named}.", "text_1")


class RerankBody(TruncatedBody, TermsBody):
    """Query, and documents to sort by similarity to it."""

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = UNSUPPORTED_IN_SCORES

    query: Text
    documents: Texts
    top_n: Annotated[int, Field(ge=0, le=INT32_MAX), WHOLE] = 0
    """Number of documents to show; 0 shows all."""
