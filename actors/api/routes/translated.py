"""POST /v1/messages and /v1/responses: two other shapes of a conversation, answered as chats."""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from quart import Blueprint, Response

from sundog.actors.api.answers.message import MessageEvents, whole_message
from sundog.actors.api.answers.response import ResponseEvents, ResponseObject, repeated, whole_response
from sundog.actors.api.bodies.chat import ChatBody, read_conversation
from sundog.actors.api.bodies.extras import read_body
from sundog.actors.api.bodies.messages import MessagesBody, PromptBody
from sundog.actors.api.bodies.parsing import MANY_MESSAGES, THREAD_FROM_BYTES, Json, off_the_loop, validate
from sundog.actors.api.bodies.responses import ResponseBody
from sundog.actors.api.context import ApiContext
from sundog.actors.api.errors import ApiError, invalid
from sundog.actors.api.left_out import noted
from sundog.actors.api.requests import current_request
from sundog.actors.api.responses import fed_response, json_response
from sundog.actors.api.routes.completions import ChatAnswer
from sundog.actors.api.routes.generate import STORED
from sundog.actors.api.routes.tokenize import apart
from sundog.actors.api.stored import StoredResponse, StoredResponses, size_of
from sundog.actors.messages import Cancel

FIELD = re.compile(r"^\w+")


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Rename the field in an ApiError and its message; `names` maps a chat's fields to these."""
    try:
        yield
    except ApiError as error:
        field = FIELD.match(error.param or "")
        if field is None or field[0] not in names:
            raise
        own = names[field[0]]
        message = re.sub(rf"\b{field[0]}\b", own, error.message)
        raise replace(error, message=message, param=FIELD.sub(own, error.param or "")) from None


NAMES_IN_MESSAGES = {"stop": "stop_sequences", "thinking_token_budget": "thinking.budget_tokens"}
"""Names in this API of a chat completion's fields."""
BodyT = TypeVar("BodyT", bound=PromptBody)


def messages_routes(context: ApiContext) -> Blueprint:
    """Return the two routes of Anthropic's API."""
    routes = Blueprint("messages", __name__)

    @routes.post("/v1/messages")
    async def create_message() -> Response:
        body = await _parsed_message(MessagesBody, context)
        with renamed(NAMES_IN_MESSAGES):
            as_chat = await _as_chat(context, body.chat, await _is_large(len(body.messages)))
            chat = await ChatAnswer.begin(context, current_request(), as_chat, "msg_")
        if not body.stream:
            return noted(json_response(whole_message(await chat.whole())), body.left_out(), context)
        events = chat.chunks(MessageEvents(chat.answer_id, context.model.name))
        return noted(fed_response(events), body.left_out(), context)

    @routes.post("/v1/messages/count_tokens")
    async def count_tokens() -> Response:
        body = await _parsed_message(PromptBody, context)
        as_chat = await _as_chat(context, body.prompt, await _is_large(len(body.messages)))
        num_tokens = await count_prompt(context, as_chat)
        original = {"original_input_tokens": num_tokens}
        answer = json_response({"input_tokens": num_tokens, "context_management": original})
        return noted(answer, body.left_out(), context)

    return routes


async def _parsed_message(body_type: type[BodyT], context: ApiContext) -> BodyT:
    context.must_generate("Messages API")
    body = await read_body(body_type, current_request(), context)
    context.check_model(body.model)
    return body


async def _is_large(num_messages: int) -> bool:
    """Return whether to convert the request in a thread, because of its messages or other fields."""
    return num_messages > MANY_MESSAGES or len(await current_request().read_body()) >= THREAD_FROM_BYTES


async def _as_chat(context: ApiContext, make: Callable[[], Json], is_large: bool) -> ChatBody:
    return await off_the_loop(context, lambda: validate(ChatBody, make()), is_large=is_large)


async def _continued(context: ApiContext, body: ResponseBody, before: list[Json]) -> ChatBody:
    num_own = 1 if isinstance(body.input, str) else len(body.input)
    return await _as_chat(context, partial(body.chat, before), await _is_large(len(before) + num_own))


async def count_prompt(context: ApiContext, chat: ChatBody) -> int:
    """Return the number of tokens of a chat's prompt; raises 501 without a tokenizer."""
    if context.codec is None:
        raise ApiError(501, "This server has no tokenizer: it only counts tokens.")
    turns = await read_conversation(chat.messages, context)
    encode = partial(context.codec.encode_chat, turns, None, chat.reading())
    # The ids are counted, and freed, in the thread: millions of them take the event loop 60 ms.
    return await apart(context, current_request(), lambda: len(encode()), "messages")


BYTES_A_TOKEN = 8
"""Bytes per token of a stored answer."""
NAMES_IN_RESPONSES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
}
"""Names in this API of a chat completion's fields."""


def responses_routes(context: ApiContext) -> Blueprint:
    """Return the routes; they share the stored responses."""
    routes = Blueprint("responses", __name__)
    kept = StoredResponses(context.keeps_responses)

    async def parsed() -> tuple[ResponseBody, list[Json], int, bool]:
        """Return the body, the messages before it, the bytes of both, and whether it is large."""
        context.must_generate("Responses API")
        request = current_request()
        body = await read_body(ResponseBody, request, context)
        data = await request.read_body()
        is_large = len(data) >= THREAD_FROM_BYTES
        num_bytes = await off_the_loop(context, partial(size_of, data), is_large=is_large)
        if (previous := body.previous_response_id) is None:
            return body, [], num_bytes, is_large
        before = kept.get(request.owner, previous, "previous_response_id")
        return body, before.so_far, num_bytes + before.num_bytes, is_large

    @routes.post("/v1/responses")
    async def create_response() -> Response:
        body, before, num_bytes, is_large = await parsed()
        owner = current_request().owner
        if body.store:
            kept.check_room(owner, num_bytes)
        with renamed(NAMES_IN_RESPONSES):
            as_chat = await _continued(context, body, before)
            chat = await ChatAnswer.begin(context, current_request(), as_chat, STORED)
        room_tokens = context.model.max_model_len - chat.num_prompt_tokens
        asked = repeated(body, chat.sampling, room_tokens, kept.keeps)
        response = ResponseObject(chat.answer_id, context.model.name, int(time.time()), asked)
        if body.store:
            conversation = [*before, *await off_the_loop(context, body.messages, is_large=is_large)]
            num_bytes += BYTES_A_TOKEN * (asked["max_output_tokens"] or 0)
            stored = StoredResponse(response, conversation, chat.request_id, num_bytes)
            kept.keep(owner, chat.answer_id, stored)
        if not body.stream:
            return noted(
                json_response(whole_response(response, await chat.whole())), body.left_out(), context
            )
        return noted(fed_response(chat.chunks(ResponseEvents(response))), body.left_out(), context)

    @routes.post("/v1/responses/input_tokens")
    async def count_input() -> Response:
        body, before, *_ = await parsed()
        with renamed(NAMES_IN_RESPONSES):
            chat = await _continued(context, body, before)
            context.check_model(chat.model)
            num_tokens = await count_prompt(context, chat)
        answer = json_response({"object": "response.input_tokens", "input_tokens": num_tokens})
        return noted(answer, body.left_out(), context)

    @routes.get("/v1/responses/<name>")
    async def show_response(name: str) -> Response:
        return json_response(kept.get(current_request().owner, name).response.as_json())

    @routes.delete("/v1/responses/<name>")
    async def forget_response(name: str) -> Response:
        kept.forget(current_request().owner, name)
        return json_response({"id": name, "object": "response", "deleted": True})

    @routes.post("/v1/responses/<name>/cancel")
    async def cancel_response(name: str) -> Response:
        stored = kept.get(current_request().owner, name)
        if not stored.response.is_in_progress:
            raise invalid("The response has ended and cannot be cancelled.", None)
        stored.response.cancel()
        context.llm.tell(Cancel(stored.request_id))
        return json_response(stored.response.as_json())

    return routes
