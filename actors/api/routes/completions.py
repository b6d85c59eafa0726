"""POST /v1/completions: one choice for each prompt."""

from dataclasses import replace
from functools import partial

from quart import Blueprint, Response

from actors.api.bodies.completion import UNSUPPORTED, CompletionBody
from actors.api.bodies.parsing import parse_request
from actors.api.bodies.unsupported import check_extras
from actors.api.choices import Choices
from actors.api.context import ApiContext
from actors.api.edge.request import current_request
from actors.api.responses.shapes import COMPLETION
from actors.api.routes.generate import Answering
from actors.kernel.clock import run_blocking


def completions_routes(context: ApiContext) -> Blueprint:
    """The route, bound to its AsyncLLM."""
    routes = Blueprint("completions", __name__)

    @routes.post("/v1/completions")
    async def create_completion() -> Response:
        request = current_request()
        context.must_generate("Completions API")
        body = await parse_request(CompletionBody, request, context)
        check_extras(body.model_extra or {}, context, UNSUPPORTED)
        adapter = context.check_model(body.model)
        sampling = body.sampling(body.token_limit, context.model.defaults)
        answering = Answering(context, request, COMPLETION, body, adapter)
        wanted = answering.wanted(sampling, None, only_echo=body.max_tokens == 0)
        answer_id, choices = await answering.start(body.prompt, sampling)
        if body.echo:
            wanted = replace(wanted, echoes=await _echoes(context, body, choices))
        return await answering.respond(answer_id, choices, wanted)

    return routes


async def _echoes(context: ApiContext, body: CompletionBody, choices: Choices) -> tuple[str, ...]:
    """The text of each prompt; nothing where its tokens are returned anyway, as in vLLM."""
    if body.return_token_ids:
        return ("",) * len(body.prompt)
    tokens = {choice.asked.index: choice.asked.prompt_token_ids for choice in choices.all}
    texts = []
    for index, prompt in enumerate(body.prompt):
        if isinstance(prompt, str) and body.truncate_prompt_tokens is None:
            texts.append(prompt)
        else:
            texts.append(await text_of(context, tokens[index]))
    return tuple(texts)


async def text_of(context: ApiContext, prompt: tuple[int, ...]) -> str:
    """A prompt as the model reads it, special tokens shown."""
    assert context.codec is not None, "token ids came from it"
    return await run_blocking(partial(context.codec.decode, prompt, skip_special_tokens=False))
