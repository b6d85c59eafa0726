"""POST /v1/responses, and what can be done with a response later: OpenAI's newer shape of a chat."""

import time

from quart import Blueprint, Response

from actors.api.bodies.parsing import parse_request
from actors.api.bodies.passed import SAMPLED, not_passed
from actors.api.bodies.responses import HARMLESS, UNSUPPORTED, ResponseBody
from actors.api.bodies.unsupported import check_extras
from actors.api.context import ApiContext
from actors.api.edge.request import current_request
from actors.api.edge.response import fed_response, json_response
from actors.api.errors import invalid
from actors.api.json_object import Json
from actors.api.routes.chat import Chat
from actors.api.routes.messages import as_chat, count_prompt
from actors.api.routes.renamed import renamed
from actors.api.stored import StoredResponse, StoredResponses
from actors.api.translated.repeated import repeated
from actors.api.translated.response import ResponseEvents, ResponseObject, whole_response
from actors.messages import Cancel

NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
}
"""What fields of a chat completion are called here."""


def responses_routes(context: ApiContext) -> Blueprint:
    """The routes, and the responses that this server remembers."""
    routes = Blueprint("responses", __name__)
    kept = StoredResponses(context.keeps_responses)

    async def parsed() -> tuple[ResponseBody, list[Json]]:
        """The request's checked body, and the messages of the response that it goes on from."""
        context.must_generate("Responses API")
        body = await parse_request(ResponseBody, current_request(), context)
        check_extras(not_passed(body.model_extra, SAMPLED | HARMLESS), context, UNSUPPORTED)
        previous = body.previous_response_id
        return body, [] if previous is None else kept.get(previous, "previous_response_id").so_far

    @routes.post("/v1/responses")
    async def create_response() -> Response:
        body, before = await parsed()
        with renamed(NAMES):
            chat = await Chat.begin(context, current_request(), as_chat(body.chat(before)), "resp_")
        room_tokens = context.model.max_model_len - chat.num_prompt_tokens
        asked = repeated(body, chat.sampling, room_tokens, kept.keeps)
        response = ResponseObject(chat.answer_id, context.model.name, int(time.time()), asked)
        if body.store:
            conversation = [*before, *body.messages()]
            kept.keep(chat.answer_id, StoredResponse(response, conversation, chat.request_id))
        if not body.stream:
            return json_response(whole_response(response, await chat.whole()))
        return fed_response(chat.chunks(ResponseEvents(response)))

    @routes.post("/v1/responses/input_tokens")
    async def count_input() -> Response:
        body, before = await parsed()
        with renamed(NAMES):
            chat = as_chat(body.chat(before))
            context.check_model(chat.model)
            num_tokens = await count_prompt(context, chat)
        return json_response({"object": "response.input_tokens", "input_tokens": num_tokens})

    @routes.get("/v1/responses/<name>")
    async def show_response(name: str) -> Response:
        return json_response(kept.get(name).response.as_json())

    @routes.delete("/v1/responses/<name>")
    async def forget_response(name: str) -> Response:
        kept.forget(name)
        return json_response({"id": name, "object": "response", "deleted": True})

    @routes.post("/v1/responses/<name>/cancel")
    async def cancel_response(name: str) -> Response:
        stored = kept.get(name)
        if not stored.response.is_in_progress:
            raise invalid("The response is over: there is nothing to cancel.", None)
        stored.response.cancel()
        context.llm.tell(Cancel(stored.request_id))
        return json_response(stored.response.as_json())

    return routes
