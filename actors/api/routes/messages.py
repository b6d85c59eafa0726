"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's conversations, answered as chats are."""

from functools import partial
from typing import TypeVar

from pydantic import ValidationError
from quart import Blueprint, Response

from actors.api.bodies.chat import ChatBody, conversation
from actors.api.bodies.messages import HARMLESS, UNSUPPORTED, MessagesBody, PromptBody
from actors.api.bodies.parsing import as_api_error, parse_request
from actors.api.bodies.passed import SHARED, not_passed
from actors.api.bodies.unsupported import check_extras
from actors.api.context import ApiContext
from actors.api.edge.request import current_request
from actors.api.edge.response import fed_response, json_response
from actors.api.errors import ApiError
from actors.api.json_object import Json
from actors.api.routes.chat import Chat
from actors.api.routes.renamed import renamed
from actors.api.translated.message import MessageEvents, whole_message
from actors.kernel.clock import run_blocking

NAMES = {"stop": "stop_sequences", "thinking_token_budget": "thinking.budget_tokens"}
"""What fields of a chat completion are called here."""
BodyT = TypeVar("BodyT", bound=PromptBody)


def messages_routes(context: ApiContext) -> Blueprint:
    """The two routes."""
    routes = Blueprint("messages", __name__)

    @routes.post("/v1/messages")
    async def create_message() -> Response:
        body = await _parsed(MessagesBody, context)
        with renamed(NAMES):
            chat = await Chat.begin(context, current_request(), as_chat(body.chat()), "msg_")
        if not body.stream:
            return json_response(whole_message(await chat.whole()))
        return fed_response(chat.chunks(MessageEvents(chat.answer_id, context.model.name)))

    @routes.post("/v1/messages/count_tokens")
    async def count_tokens() -> Response:
        body = await _parsed(PromptBody, context)
        num_tokens = await count_prompt(context, as_chat(body.prompt()))
        original = {"original_input_tokens": num_tokens}
        return json_response({"input_tokens": num_tokens, "context_management": original})

    return routes


async def _parsed(body_type: type[BodyT], context: ApiContext) -> BodyT:
    """The request's checked body; raises 400 for what it has beyond what is honoured."""
    context.must_generate("Messages API")
    body = await parse_request(body_type, current_request(), context)
    check_extras(not_passed(body.model_extra, SHARED | HARMLESS), context, UNSUPPORTED)
    context.check_model(body.model)
    return body


async def count_prompt(context: ApiContext, chat: ChatBody) -> int:
    """Return how many tokens a chat's prompt has; raises 501 where there is no tokenizer."""
    if context.codec is None:
        raise ApiError(501, "This server counts tokens and has no tokenizer.")
    encode = partial(context.codec.encode_chat, conversation(chat.messages), None, chat.reading())
    return len(await run_blocking(encode))


def as_chat(chat: Json) -> ChatBody:
    """The chat completion's body; raises 400 for what it may not hold."""
    try:
        return ChatBody.model_validate(chat)
    except ValidationError as error:
        raise as_api_error(error.errors(include_url=False)[0]) from None
