"""POST /v1/chat/completions: one choice for one conversation."""

from quart import Blueprint, Response

from actors.api.bodies.chat import UNSUPPORTED, ChatBody, conversation
from actors.api.bodies.parsing import parse_request
from actors.api.bodies.unsupported import check_extras
from actors.api.context import ApiContext
from actors.api.edge.request import current_request
from actors.api.responses.shapes import ChatShape
from actors.api.routes.generate import Answering


def chat_routes(context: ApiContext) -> Blueprint:
    """The route, bound to its AsyncLLM."""
    routes = Blueprint("chat", __name__)

    @routes.post("/v1/chat/completions")
    async def create_chat_completion() -> Response:
        request = current_request()
        body = await parse_request(ChatBody, request, context)
        check_extras(body.model_extra or {}, context, UNSUPPORTED)
        context.check_model(body.model)
        turns = conversation(body.messages)
        sampling = body.sampling(body.token_limit)
        answering = Answering(context, request, ChatShape(body.answering_role), body)
        wanted = answering.wanted(sampling, (body.echoed,) if body.echoed else None)
        answer_id, choices = await answering.start([turns], sampling)
        return await answering.respond(answer_id, choices, wanted)

    return routes
