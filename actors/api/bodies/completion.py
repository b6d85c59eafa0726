"""The body of POST /v1/completions."""

from typing import Annotated

from pydantic import Field, PlainValidator

from actors.api.bodies.bounds import INT32_MAX, MAX_PROMPT_TOKENS, MAX_PROMPTS, NumTokens, TokenIds
from actors.api.bodies.logits import NumLogprobsOrOff
from actors.api.bodies.sampling import SamplingBody
from actors.api.errors import invalid

DEFAULT_MAX_TOKENS = 16
UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "include_reasoning": (True,),
    "reasoning_effort": (),
    "parallel_tool_calls": (True, False),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
}

Prompt = str | tuple[int, ...]
PromptInput = (
    Annotated[str, Field(min_length=1)]
    | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
    | TokenIds
    | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS)]
)


def as_prompts(value: object) -> tuple[Prompt, ...]:
    """`prompt` in its four forms (text, texts, ids, lists of ids); raises ValueError."""
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
    """The body of POST /v1/completions."""

    prompt: Annotated[tuple[Prompt, ...], PlainValidator(as_prompts, json_schema_input_type=PromptInput)]
    max_tokens: NumTokens = DEFAULT_MAX_TOKENS
    logprobs: NumLogprobsOrOff = None

    @property
    def token_limit(self) -> int:
        """How many tokens the engine makes: an echo alone takes one, which is not shown."""
        if self.max_tokens == 0 and not self.echo:
            raise invalid("max_tokens is 0: ask for at least 1, or for echo.", "max_tokens")
        return max(self.max_tokens, 1)

    @property
    def num_logprobs(self) -> int | None:
        """What `logprobs` says."""
        return self.logprobs
