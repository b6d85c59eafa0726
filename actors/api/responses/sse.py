"""Server-sent events: deltas as OpenAI's chunks.

A chunk is a prefix made once, the text as JSON, and a suffix made once: this runs once per token.
Law: a stream ends with `data: [DONE]`; if generating failed, an error event comes before it.
"""

import json
import logging
from collections.abc import AsyncGenerator

from actors.api.bodies.sampling import UsageWanted
from actors.api.choices import Choice, Choices
from actors.api.errors import BROKEN, ApiError
from actors.api.responses.shapes import Json, ResponseShape, choice_object
from actors.stream import Delta

log = logging.getLogger("sundog.api")

DONE = b"data: [DONE]\n\n"
SLOT = "\ue000"  # where the text goes in a chunk that is made once


class ChunkWriter:
    """Writes the chunks of one answer; `head` holds what all of them repeat."""

    def __init__(self, shape: ResponseShape, head: Json, choices: Choices, usage_wanted: UsageWanted) -> None:
        self._shape = shape
        self._head = head
        self._choices = choices
        self._usage_wanted = usage_wanted
        self._around_text = [self._split(choice.index) for choice in choices.all]
        self._opened = [shape.opening is None] * len(choices.all)

    def _chunk(self, choices: list[Json], usage: Json | None = None) -> str:
        body = self._head | {"choices": choices}
        if self._usage_wanted != "never":
            body["usage"] = usage
        return f"data: {json.dumps(body, separators=(',', ':'))}\n\n"

    def _split(self, index: int) -> tuple[str, str]:
        chunk = self._chunk([choice_object(index, self._shape.piece(SLOT), Delta())])
        before, _, after = chunk.rpartition(json.dumps(SLOT))
        return before, after

    def delta(self, choice: Choice, delta: Delta) -> bytes:
        """One delta as one chunk, after the opening chunk if it is the first of its choice."""
        index = choice.index
        if not self._opened[index] and self._shape.opening is not None:
            self._opened[index] = True
            opening = self._chunk([choice_object(index, self._shape.opening, Delta())])
            return opening.encode() + self.delta(choice, delta)
        if delta.finish_reason is None and self._usage_wanted != "always":
            before, after = self._around_text[index]
            return f"{before}{json.dumps(delta.text)}{after}".encode()
        usage = choice.usage() if self._usage_wanted == "always" else None
        return self._chunk([choice_object(index, self._shape.piece(delta.text), delta)], usage).encode()

    def last(self) -> bytes:
        """The usage chunk, if it was asked for, and the end mark."""
        if self._usage_wanted == "never":
            return DONE
        return self._chunk([], self._choices.usage()).encode() + DONE


async def events(choices: Choices, writer: ChunkWriter) -> AsyncGenerator[bytes, None]:
    """The body of a streamed answer: one write a read, and the end goes out with the last delta.

    Once the body has begun, a failure can only be an event in it.
    """
    try:
        while not choices.finished:
            choice, delta = await choices.read()
            if delta.finish_reason == "error":
                yield error_event(delta.error or BROKEN) + DONE
                return
            chunk = writer.delta(choice, delta)
            yield chunk + writer.last() if choices.finished else chunk
    except Exception:
        log.exception("a stream failed")
        yield error_event(BROKEN) + DONE


def error_event(message: str) -> bytes:
    """An event that OpenAI's clients raise as APIError."""
    return f"data: {json.dumps(ApiError(500, message).body)}\n\n".encode()
