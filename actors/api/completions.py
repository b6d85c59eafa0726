"""POST /v1/completions: one choice for each prompt."""

from typing import Annotated

from pydantic import PlainValidator
from quart import Blueprint, Response

from actors.api.answer import answer
from actors.api.body import GenerationBody, parse
from actors.api.edge.connection import current_request
from actors.api.errors import invalid
from actors.api.fields import check_extras
from actors.api.form import COMPLETION
from actors.api.service import ServedModel, Service

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


class CompletionBody(GenerationBody):
    """The body of POST /v1/completions."""

    prompt: Annotated[tuple[Prompt, ...], PlainValidator(as_prompts)]


def check_vocabulary(prompts: tuple[Prompt, ...], model: ServedModel) -> None:
    """Raises 400 for a token id that the model does not have."""
    if model.vocabulary_size is None:
        return
    for prompt in prompts:
        if not isinstance(prompt, str) and max(prompt) >= model.vocabulary_size:
            raise invalid(
                f"prompt has the token id {max(prompt)}; the model's ids end at {model.vocabulary_size - 1}.",
                "prompt",
            )


def completions_routes(service: Service) -> Blueprint:
    """The route, bound to its AsyncLLM."""
    routes = Blueprint("completions", __name__)

    @routes.post("/v1/completions")
    async def create_completion() -> Response:
        request = current_request()
        body = parse(CompletionBody, await request.read_body())
        check_extras(body.model_extra or {}, service, UNSUPPORTED)
        service.check_model(body.model)
        check_vocabulary(body.prompt, service.model)
        max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
        sampling = body.sampling(max_tokens)
        return await answer(service, request, COMPLETION, body, body.prompt, sampling)

    return routes
