"""Parts of a chat answer, whole or chunk by chunk, from which other shapes are made."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from sundog.actors.api.answers.choices import AnswerChoice
from sundog.actors.api.answers.sse import EventWriter
from sundog.actors.api.answers.tool_calls import ORDER
from sundog.actors.api.bodies.parsing import Json
from sundog.actors.kernel.stream import Delta

Chunk = Json
"""Chat completion, or a chunk of one, as JSON."""


@dataclass(frozen=True, slots=True)
class SaidPart:
    """Text of the answer or of its reasoning."""

    text: str
    is_reasoning: bool = False
    logprobs: tuple[Json, ...] = ()
    """Log probabilities of its tokens, if requested."""


@dataclass(frozen=True, slots=True)
class CalledPart:
    """Beginning of a call, or more of its arguments: then only `arguments` is set."""

    index: int
    arguments: str
    call_id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class UsedPart:
    """Token usage of an answer so far."""

    num_prompt_tokens: int
    num_cached_tokens: int
    num_tokens: int
    num_thoughts: int = 0
    """Number of the new tokens that are reasoning."""


@dataclass(frozen=True, slots=True)
class EndedPart:
    """End of an answer; `stop` is the stop string that ended it, if any."""

    reason: str
    stop: str | None


@dataclass(frozen=True, slots=True)
class FailedPart:
    """Failure of an answer, which ends it."""

    message: str


Part = SaidPart | CalledPart | UsedPart | EndedPart | FailedPart


def parts_of(chunk: Chunk) -> Iterator[Part]:
    """Yield the parts of a whole answer or of one chunk, in order."""
    if "error" in chunk:
        yield FailedPart(chunk["error"]["message"])
        return
    if usage := chunk.get("usage"):
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        thoughts = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens", 0)
        yield UsedPart(usage["prompt_tokens"], cached, usage["completion_tokens"], thoughts)
    for choice in chunk["choices"]:
        message = choice.get("message") or choice.get("delta") or {}
        if reasoning := message.get("reasoning"):
            yield SaidPart(reasoning, is_reasoning=True)
        yield from _in_order(message, tuple((choice.get("logprobs") or {}).get("content") or ()))
        if reason := choice.get("finish_reason"):
            stop = choice.get("stop_reason")
            yield EndedPart(reason, stop if isinstance(stop, str) else None)


def _in_order(message: Json, logprobs: tuple[Json, ...]) -> Iterator[Part]:
    """Yield the texts and calls of a message or delta in order; the first text has all log probabilities."""
    content, calls = message.get("content"), message.get("tool_calls") or ()
    for piece in message.get(ORDER) or (*([content] if content else ()), *range(len(calls))):
        if isinstance(piece, str):
            yield SaidPart(piece, logprobs=logprobs)
            logprobs = ()
            continue
        call = calls[piece]
        function = call["function"]
        yield CalledPart(
            call.get("index", piece), function["arguments"], call.get("id"), function.get("name")
        )


def parts_in(written: bytes) -> Iterator[Part]:
    """Yield the parts of chunks that have been written as server-sent events."""
    for event in written.decode().split("\n\n"):
        data = event.removeprefix("data: ")
        if data and data != "[DONE]":
            yield from parts_of(json.loads(data))


def sse(event: str, body: Mapping[str, object]) -> bytes:
    """Return a server-sent event whose name is also its `type`."""
    data = json.dumps({"type": event, **body}, separators=(",", ":"))
    return f"event: {event}\ndata: {data}\n\n".encode()


class Shaped(Protocol):
    """Converter of a streamed answer to another shape."""

    def take(self, part: Part) -> bytes:
        """Return the events of a part."""
        ...

    def last(self) -> bytes:
        """Return the events after the last part."""
        ...


class TranslatingWriter:
    """Stream writer that converts chunks of a chat to events of another shape."""

    def __init__(self, chunks: EventWriter, shaped: Shaped) -> None:
        self._chunks, self._shaped = chunks, shaped

    def delta(self, choice: AnswerChoice, delta: Delta) -> bytes:
        return self._taken(self._chunks.delta(choice, delta))

    def last(self) -> bytes:
        return self._taken(self._chunks.last()) + self._shaped.last()

    def error(self, message: str) -> bytes:
        return self._shaped.take(FailedPart(message)) + self._shaped.last()

    def _taken(self, written: bytes) -> bytes:
        return b"".join([self._shaped.take(part) for part in parts_in(written)])
