"""What the generating routes share: from a checked body to an answer, whole or streamed."""

import time
from collections.abc import Sequence
from dataclasses import replace

from quart import Response

from actors.api.bodies.sampling import SamplingBody
from actors.api.choices import Choice, Choices, start_choices
from actors.api.context import ApiContext
from actors.api.edge.request import ApiRequest
from actors.api.edge.response import event_stream_response, json_response
from actors.api.errors import BROKEN, ApiError, unavailable
from actors.api.responses.shapes import Json, ResponseShape, choice_object
from actors.api.responses.sse import ChunkWriter, events
from actors.core.sampling import Sampling
from actors.messages import ChatMessage, CheckHealth, Generate
from actors.stream import Delta

Prompt = str | tuple[int, ...] | tuple[ChatMessage, ...]


async def generate_response(
    context: ApiContext,
    request: ApiRequest,
    shape: ResponseShape,
    body: SamplingBody,
    prompts: Sequence[Prompt],
    sampling: Sampling,
) -> Response:
    """Answer `body` with `n` choices for each prompt; raises ApiError if any is refused."""
    usage_wanted = body.usage_wanted()
    body.check_choices(len(prompts))
    answer_id = shape.id_prefix + context.new_id()
    generates = [
        Generate(
            prompt=prompt,
            sampling=sampling,
            request_id=answer_id if len(prompts) == 1 else f"{answer_id}-{index}",
            priority=body.priority,
            cache_salt=body.cache_salt,
            n=body.n,
        )
        for index, prompt in enumerate(prompts)
    ]
    choices = await start_choices(context.llm, generates, shape.prompt_field, request.at_end)
    head: Json = {
        "id": answer_id,
        "object": shape.chunk_object if body.stream else shape.object,
        "created": int(time.time()),
        "model": context.model.name,
    }
    if not body.stream:
        return await _whole(context, shape, head, choices)
    choices.merge_in(request.nursery)
    writer = ChunkWriter(shape, head, choices, usage_wanted)
    return event_stream_response(events(choices, writer))


async def _whole(context: ApiContext, shape: ResponseShape, head: Json, choices: Choices) -> Response:
    """Read one choice after the other: what is unread merges in its stream meanwhile."""
    objects = []
    for choice in choices.all:
        delta = await _collected(choice)
        if delta.finish_reason == "error":
            raise await _failure(context, delta.error or BROKEN)
        objects.append(choice_object(choice.index, shape.whole(delta.text), delta))
    return json_response(head | {"choices": objects, "usage": choices.usage()})


async def _collected(choice: Choice) -> Delta:
    """The whole choice as one delta."""
    texts = []
    while True:
        delta = await choice.read()
        texts.append(delta.text)
        if delta.finish_reason is not None:
            return replace(delta, text="".join(texts))


async def _failure(context: ApiContext, message: str) -> ApiError:
    """Why there is no answer: 500 if this request failed alone, 503 if no engine is up."""
    health = await context.llm.ask(CheckHealth())
    return ApiError(500, message) if health.serves else unavailable(message, health.retry_after_s)
