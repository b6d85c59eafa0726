"""POST /v1/chat/completions: one choice for one conversation."""

from dataclasses import replace

from quart import Blueprint, Response

from actors.api.answer_format import text_format
from actors.api.bodies.chat import UNSUPPORTED, ChatBody, conversation
from actors.api.bodies.parsing import parse_request
from actors.api.bodies.unsupported import check_extras
from actors.api.context import ApiContext
from actors.api.edge.request import current_request
from actors.api.responses.shapes import ChatShape
from actors.api.responses.tool_shape import ToolShape
from actors.api.routes.completions import text_of
from actors.api.routes.generate import Answering


def chat_routes(context: ApiContext) -> Blueprint:
    """The route, bound to its AsyncLLM."""
    routes = Blueprint("chat", __name__)

    @routes.post("/v1/chat/completions")
    async def create_chat_completion() -> Response:
        request = current_request()
        context.must_generate("Chat Completions API")
        body = await parse_request(ChatBody, request, context)
        check_extras(body.model_extra or {}, context, UNSUPPORTED)
        adapter = context.check_model(body.model)
        turns = conversation(body.messages)
        sampling = body.sampling(body.token_limit, context.model.defaults)
        constrained = sampling.constraint is not None
        form = text_format(body.chosen_tools, body.parallel_tool_calls, constrained, context.answers)
        form = replace(form, shows_thoughts=body.include_reasoning)
        if form.calls is not None and form.calls.keeps_special:
            sampling = replace(sampling, skip_special_tokens=False)
        role = body.answering_role
        shape = ChatShape(role) if form.is_plain else ToolShape(role, form)
        answering = Answering(context, request, shape, body, adapter)
        wanted = answering.wanted(sampling, (body.echoed,) if body.echoed else None)
        answer_id, choices = await answering.start([turns], sampling)
        if body.return_prompt_text:
            text = await text_of(context, choices.all[0].asked.prompt_token_ids)
            wanted = replace(wanted, prompt_texts=(text,))
        return await answering.respond(answer_id, choices, wanted)

    return routes
