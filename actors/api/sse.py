"""Server-sent events: deltas as OpenAI's chunks.

A chunk is a prefix made once, the text as JSON, and a suffix made once: this runs once per token.
Law: a stream ends with `data: [DONE]`, or with an error event when generating failed.
"""

import json
import logging
from collections.abc import AsyncGenerator

from quart_trio.wrappers import TrioResponse

from actors.api.body import UsageWanted
from actors.api.errors import BROKEN, ApiError
from actors.api.form import Form, Json, choice
from actors.api.generation import Generation, Generations
from actors.stream import Delta

log = logging.getLogger("sundog.api")

DONE = b"data: [DONE]\n\n"
SLOT = "\ue000"  # where the text goes in a chunk that is made once


class ChunkWriter:
    """Writes the chunks of one answer; `head` holds what all of them repeat."""

    def __init__(self, form: Form, head: Json, generations: Generations, usage_wanted: UsageWanted) -> None:
        self._form = form
        self._head = head
        self._generations = generations
        self._usage_wanted = usage_wanted
        self._around_text = [self._split(each.index) for each in generations.all]
        self._opened = [form.opening is None] * len(generations.all)

    def _chunk(self, choices: list[Json], usage: Json | None = None) -> str:
        body = self._head | {"choices": choices}
        if self._usage_wanted != "never":
            body["usage"] = usage
        return f"data: {json.dumps(body, separators=(',', ':'))}\n\n"

    def _split(self, index: int) -> tuple[str, str]:
        chunk = self._chunk([choice(index, self._form.piece(SLOT), Delta())])
        before, _, after = chunk.rpartition(json.dumps(SLOT))
        return before, after

    def delta(self, generation: Generation, delta: Delta) -> bytes:
        """One delta as one chunk, after the opening chunk if it is the first of its choice."""
        index = generation.index
        if not self._opened[index] and self._form.opening is not None:
            self._opened[index] = True
            opening = self._chunk([choice(index, self._form.opening, Delta())])
            return opening.encode() + self.delta(generation, delta)
        if delta.finish_reason is None and self._usage_wanted != "always":
            before, after = self._around_text[index]
            return f"{before}{json.dumps(delta.text)}{after}".encode()
        usage = self._generations.usage() if self._usage_wanted == "always" else None
        return self._chunk([choice(index, self._form.piece(delta.text), delta)], usage).encode()

    def last(self) -> bytes:
        """The usage chunk, if it was asked for, and the end mark."""
        if self._usage_wanted == "never":
            return DONE
        return self._chunk([], self._generations.usage()).encode() + DONE


async def events(generations: Generations, writer: ChunkWriter) -> AsyncGenerator[bytes, None]:
    """The body of a streamed answer. Once it has begun, a failure can only be an event in it."""
    try:
        while (read := await generations.read()) is not None:
            generation, delta = read
            if delta.finish_reason == "error":
                yield error_event(delta.error or BROKEN)
                return
            yield writer.delta(generation, delta)
        yield writer.last()
    except Exception:
        log.exception("a stream failed")
        yield error_event(BROKEN)


def error_event(message: str) -> bytes:
    """An event that OpenAI's clients raise as APIError."""
    return f"data: {json.dumps(ApiError(500, message).body)}\n\n".encode()


def event_response(body: AsyncGenerator[bytes, None]) -> TrioResponse:
    """A streamed answer that no timer cuts and no proxy collects."""
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    response = TrioResponse(body, 200, headers, content_type="text/event-stream; charset=utf-8")
    response.timeout = None
    return response
