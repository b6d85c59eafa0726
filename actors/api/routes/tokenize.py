"""POST /tokenize and /detokenize, GET /tokenizer_info: the model's tokenizer, in vLLM's shapes.

It runs in a thread, one large text at a time, so that no stream waits for it.
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from quart import Blueprint, Response

from sundog.actors.api.bodies.chat import DetokenizeBody, TokenizeBody, read_conversation
from sundog.actors.api.bodies.extras import read_body
from sundog.actors.api.bodies.parsing import in_a_thread
from sundog.actors.api.context import ApiContext
from sundog.actors.api.errors import ApiError, invalid
from sundog.actors.api.requests import ApiRequest, current_request
from sundog.actors.api.responses import json_response, text_response
from sundog.actors.api.routes.generate import count_answer
from sundog.actors.front.codec import TextCodec, TooManyTokens
from sundog.actors.front.foreign import ForeignFailure, contained

T = TypeVar("T")

MOST_TOKENS = 2**19
"""Maximum number of tokens of one text: a list of a million takes 80 ms, during which nothing else runs."""
PIECE = 2**14
"""Items or characters that are written as JSON at a time, in a few milliseconds."""


def tokenize_routes(context: ApiContext) -> Blueprint:
    """Return the three routes of the tokenizer."""
    routes = Blueprint("tokenize", __name__)

    @routes.post("/tokenize")
    async def tokenize() -> Response:
        body = await read_body(TokenizeBody, current_request(), context)
        context.check_model(body.model)
        codec, reading = _codec(context), body.reading()
        if body.messages is not None:
            turns = await read_conversation(body.messages, context)
            encode, param = partial(codec.encode_chat, turns, MOST_TOKENS, reading), "messages"
        else:
            special = body.add_special_tokens is not False
            encode, param = partial(codec.encode, body.prompt or "", MOST_TOKENS, special), "prompt"

        def work() -> bytes:
            tokens = encode()
            names = [codec.token_name(token) for token in tokens] if body.return_token_strs else None
            head = json_bytes({"count": len(tokens), "max_model_len": context.model.max_model_len})
            lists = b',"tokens":%s,"token_strs":%s}' % (list_bytes(tokens), list_bytes(names))
            return head[:-1] + lists

        return text_response(await apart(context, current_request(), work, param), "application/json")

    @routes.post("/detokenize")
    async def detokenize() -> Response:
        body = await read_body(DetokenizeBody, current_request(), context)
        context.check_model(body.model)
        codec = _codec(context)
        if len(body.tokens) > MOST_TOKENS:
            most = f"at most {MOST_TOKENS} are read at once"
            raise invalid(f"tokens has {len(body.tokens)} tokens; {most}.", "tokens")

        def work() -> bytes:
            return b'{"prompt":%s}' % text_bytes(_text_of(codec, body.tokens))

        return text_response(await apart(context, current_request(), work, "tokens"), "application/json")

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
        raise ApiError(501, "This server has no tokenizer: it only counts tokens.")
    return context.codec


async def apart(context: ApiContext, request: ApiRequest, work: Callable[[], T], param: str) -> T:
    """Run tokenizer work in a thread, counted as an answer of its key.

    Raises 400 if the tokenizer or the template refuses the input or fails.
    """
    await count_answer(context, request)
    try:
        return await in_a_thread(context, partial(contained, work))
    except TooManyTokens as many:
        most = f"at most {MOST_TOKENS} are read at once"
        raise invalid(f"{param} has at least {many.num_tokens} tokens; {most}.", param) from None
    except ValueError as refused:  # half a surrogate pair among them
        raise invalid(f"{param}: {refused}.", param) from None
    except ForeignFailure as panic:
        raise invalid(f"{param}: the tokenizer fails at it ({panic}).", param) from None


def json_bytes(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def list_bytes(items: Sequence[object] | None) -> bytes:
    """Return a long list as JSON, written in pieces that release the interpreter's lock in between."""
    if items is None:
        return b"null"
    pieces = [json_bytes(items[at : at + PIECE])[1:-1] for at in range(0, len(items), PIECE)]
    return b"[%s]" % b",".join(pieces)


def text_bytes(text: str) -> bytes:
    """Return a long text as JSON, written in pieces like `list_bytes`."""
    return b'"%s"' % b"".join([json_bytes(text[at : at + PIECE])[1:-1] for at in range(0, len(text), PIECE)])
