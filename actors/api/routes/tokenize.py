"""POST /tokenize and /detokenize, GET /tokenizer_info: the model's tokenizer, in vLLM's shapes.

It works in a thread, one large text at a time, so that no stream waits for it.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import trio
from quart import Blueprint, Response

from actors.api.bodies.chat import DetokenizeBody, TokenizeBody, conversation
from actors.api.bodies.extras import read_body
from actors.api.context import ApiContext
from actors.api.errors import ApiError, invalid
from actors.front.codec import TextCodec
from actors.http.quart_app import current_request, json_response

T = TypeVar("T")


def tokenize_routes(context: ApiContext) -> Blueprint:
    """Return the three routes about the tokenizer."""
    routes = Blueprint("tokenize", __name__)

    @routes.post("/tokenize")
    async def tokenize() -> Response:
        body = await read_body(TokenizeBody, current_request(), context)
        context.check_model(body.model)
        codec, reading = _codec(context), body.reading()
        if body.messages is not None:
            turns = conversation(body.messages)
            tokens = await _apart(context, partial(codec.encode_chat, turns, None, reading), "messages")
        else:
            special = body.add_special_tokens is not False
            tokens = await _apart(context, partial(codec.encode, body.prompt or "", None, special), "prompt")
        names = [codec.token_name(token) for token in tokens] if body.return_token_strs else None
        return json_response(
            {
                "count": len(tokens),
                "max_model_len": context.model.max_model_len,
                "tokens": tokens,
                "token_strs": names,
            }
        )

    @routes.post("/detokenize")
    async def detokenize() -> Response:
        body = await read_body(DetokenizeBody, current_request(), context)
        context.check_model(body.model)
        codec = _codec(context)
        text = await _apart(context, partial(_text_of, codec, body.tokens), "tokens")
        return json_response({"prompt": text})

    @routes.get("/tokenizer_info")
    async def show_tokenizer() -> Response:
        return json_response(_codec(context).info())

    return routes


def _text_of(codec: TextCodec, tokens: list[int]) -> str:
    for index, token in enumerate(tokens):
        if codec.token_name(token) is None:
            raise invalid(f"tokens[{index}] is {token}: the model has no such token.", "tokens")
    return codec.decode(tokens, False)


def _codec(context: ApiContext) -> TextCodec:
    if context.codec is None:
        raise ApiError(501, "This server counts tokens and has no tokenizer.")
    return context.codec


async def _apart(context: ApiContext, work: Callable[[], T], param: str) -> T:
    """The work's result, from a thread; raises 400 for what it refuses."""
    try:
        return await trio.to_thread.run_sync(work, limiter=context.large_bodies)
    except ValueError as refused:  # half a surrogate pair among them
        raise invalid(f"{param}: {refused}.", param) from None
