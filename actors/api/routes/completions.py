"""POST /v1/completions: one choice for each prompt."""

from quart import Blueprint, Response

from actors.api.bodies.completion import DEFAULT_MAX_TOKENS, UNSUPPORTED, CompletionBody
from actors.api.bodies.parsing import parse_request
from actors.api.bodies.unsupported import check_extras
from actors.api.context import ApiContext
from actors.api.edge.request import current_request
from actors.api.responses.shapes import COMPLETION
from actors.api.routes.generate import generate_response


def completions_routes(context: ApiContext) -> Blueprint:
    """The route, bound to its AsyncLLM."""
    routes = Blueprint("completions", __name__)

    @routes.post("/v1/completions")
    async def create_completion() -> Response:
        request = current_request()
        body = await parse_request(CompletionBody, request, context)
        check_extras(body.model_extra or {}, context, UNSUPPORTED)
        context.check_model(body.model)
        max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
        sampling = body.sampling(max_tokens)
        return await generate_response(context, request, COMPLETION, body, body.prompt, sampling)

    return routes
