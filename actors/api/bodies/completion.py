"""The body of POST /v1/completions."""

from typing import Annotated

from pydantic import PlainValidator

from actors.api.bodies.sampling import SamplingBody

DEFAULT_MAX_TOKENS = 16
UNSUPPORTED = {"add_special_tokens": (True,)}

Prompt = str | tuple[int, ...]


def as_prompts(value: object) -> tuple[Prompt, ...]:
    """`prompt` in its four forms (text, texts, ids, lists of ids); raises ValueError."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and value:
        if all(isinstance(each, str) for each in value):
            return tuple(value)
        if _are_ids(value):
            return (tuple(value),)
        if all(isinstance(each, list) and each and _are_ids(each) for each in value):
            return tuple(tuple(each) for each in value)
    raise ValueError(
        "must be a string, a list of strings, a list of token ids, or a list of lists of token"
        " ids, none of the lists empty"
    )


def _are_ids(values: list[object]) -> bool:
    return all(type(each) is int and each >= 0 for each in values)


class CompletionBody(SamplingBody):
    """The body of POST /v1/completions."""

    prompt: Annotated[tuple[Prompt, ...], PlainValidator(as_prompts)]
