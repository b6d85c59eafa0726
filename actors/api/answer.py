"""From a checked body to an answer: ask AsyncLLM, then stream, or collect and answer whole."""

import json
import time
from collections.abc import Sequence

from quart import Response
from quart_trio.wrappers import TrioResponse

from actors.api.body import GenerationBody
from actors.api.edge.connection import ApiRequest
from actors.api.errors import BROKEN, ApiError
from actors.api.form import Form, Json, choice
from actors.api.generation import Generation, Generations, start_all
from actors.api.service import Service
from actors.api.sse import ChunkWriter, event_response, events
from actors.core.sampling import Sampling
from actors.messages import ChatMessage, Generate
from actors.stream import Delta

Prompt = str | tuple[int, ...] | tuple[ChatMessage, ...]


async def answer(
    service: Service,
    request: ApiRequest,
    form: Form,
    body: GenerationBody,
    prompts: Sequence[Prompt],
    sampling: Sampling,
) -> Response:
    """Answer `body` with one choice for each prompt; raises ApiError if any is refused."""
    usage_wanted = body.usage_wanted()
    answer_id = form.id_prefix + service.new_id()
    generates = [
        Generate(
            prompt=prompt,
            sampling=sampling,
            request_id=answer_id if len(prompts) == 1 else f"{answer_id}-{index}",
            priority=body.priority,
            cache_salt=body.cache_salt,
        )
        for index, prompt in enumerate(prompts)
    ]
    generations = await start_all(service.llm, generates, form.prompt_field, request.at_end)
    head: Json = {
        "id": answer_id,
        "object": form.chunk_object if body.stream else form.object,
        "created": int(time.time()),
        "model": service.model.name,
    }
    if not body.stream:
        return await _whole(form, head, generations)
    generations.merge_in(request.nursery)
    writer = ChunkWriter(form, head, generations, usage_wanted)
    return event_response(events(generations, writer))


async def _whole(form: Form, head: Json, generations: Generations) -> Response:
    """Read one generation after the other: what is unread merges in its stream meanwhile."""
    choices = []
    for generation in generations.all:
        delta = await _collected(generation)
        choices.append(choice(generation.index, form.whole(delta.text), delta))
    body = head | {"choices": choices, "usage": generations.usage()}
    return TrioResponse(json.dumps(body), content_type="application/json")


async def _collected(generation: Generation) -> Delta:
    """The whole generation as one delta; raises a 500 if it ended in an error."""
    deltas = []
    while not generation.finished:
        deltas.append(await generation.read())
    last = deltas[-1]
    if last.finish_reason == "error":
        raise ApiError(500, last.error or BROKEN)
    text = "".join(each.text for each in deltas)
    return Delta(text, finish_reason=last.finish_reason, stop_reason=last.stop_reason)
