"""Chat answers as Anthropic's messages, whole or streamed."""

from collections.abc import Iterator

import jiter

from sundog.actors.api.answers.parts import (
    CalledPart,
    Chunk,
    EndedPart,
    FailedPart,
    Part,
    SaidPart,
    UsedPart,
    parts_of,
    sse,
)
from sundog.actors.api.bodies.parsing import Json

REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "stop": "end_turn", "abort": "end_turn"}


def whole_message(chat: Chunk) -> Json:
    """Convert a chat completion to a message."""
    message = _Message(chat["id"], chat["model"])
    for part in parts_of(chat):
        message.take(part)
    return message.whole()


class MessageEvents:
    """Events of a streamed message; an error ends it."""

    def __init__(self, answer_id: str, model: str) -> None:
        self._message = _Message(answer_id, model)
        self._has_begun = self._has_failed = False

    def take(self, part: Part) -> bytes:
        if isinstance(part, FailedPart):
            self._has_failed = True
            return sse("error", {"error": {"type": "api_error", "message": part.message}})
        written = self._message.take(part)
        begins = not self._has_begun and not isinstance(part, EndedPart)
        if begins:
            self._has_begun = True
            written = [("message_start", {"message": self._message.beginning()}), *written]
        return b"".join([sse(event, body) for event, body in written])

    def last(self) -> bytes:
        return (
            b"" if self._has_failed else b"".join([sse(event, body) for event, body in self._message.end()])
        )


class _Message:
    def __init__(self, answer_id: str, model: str) -> None:
        self._id, self._model = answer_id, model
        self._blocks: list[Json] = []
        self._kind: tuple[str, int] | None = None
        """Kind of the last block: text, thinking, or the call of this number."""
        self._used = UsedPart(0, 0, 0)
        self._ended = EndedPart("stop", None)

    def take(self, part: Part) -> "list[tuple[str, Json]]":
        """Add a part and return its events."""
        match part:
            case UsedPart():
                self._used = part
            case EndedPart():
                self._ended = part
            case SaidPart(text, is_reasoning=True):
                block = {"type": "thinking", "thinking": "", "signature": ""}
                return [
                    *self._turn_to(("thinking", 0), block),
                    self._delta("thinking", "thinking_delta", text),
                ]
            case SaidPart(text):
                return [
                    *self._turn_to(("text", 0), {"type": "text", "text": ""}),
                    self._delta("text", "text_delta", text),
                ]
            case CalledPart():
                return list(self._call(part))
        return []

    def _call(self, part: CalledPart) -> Iterator[tuple[str, Json]]:
        begun: Json = {"type": "tool_use", "id": part.call_id, "name": part.name, "input": {}}
        yield from self._turn_to(("call", part.index), begun)
        self._blocks[-1]["json"] = self._blocks[-1].get("json", "") + part.arguments
        if part.arguments:
            delta = {"type": "input_json_delta", "partial_json": part.arguments}
            yield "content_block_delta", {"index": len(self._blocks) - 1, "delta": delta}

    def _turn_to(self, kind: tuple[str, int], block: Json) -> Iterator[tuple[str, Json]]:
        """End the last block and begin another, unless its kind is the same."""
        if kind == self._kind:
            return
        if self._blocks:
            yield "content_block_stop", {"index": len(self._blocks) - 1}
        self._kind = kind
        self._blocks.append(dict(block))
        yield "content_block_start", {"index": len(self._blocks) - 1, "content_block": block}

    def _delta(self, field: str, kind: str, text: str) -> tuple[str, Json]:
        self._blocks[-1][field] += text
        return "content_block_delta", {"index": len(self._blocks) - 1, "delta": {"type": kind, field: text}}

    def beginning(self) -> Json:
        """Return the message before its first block."""
        return self._head() | {
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(),
        }

    def end(self) -> Iterator[tuple[str, Json]]:
        """Yield the events after the last part."""
        if self._blocks:
            yield "content_block_stop", {"index": len(self._blocks) - 1}
        yield "message_delta", {"delta": self._stopped(), "usage": self._usage()}
        yield "message_stop", {}

    def whole(self) -> Json:
        stopped, content = self._stopped(), [_finished(block) for block in self._blocks]
        return self._head() | {"content": content} | stopped | {"usage": self._usage()}

    def _head(self) -> Json:
        return {"id": self._id, "type": "message", "role": "assistant", "model": self._model}

    def _stopped(self) -> Json:
        """Return the stop reason. As in vLLM, it is tool_use after any call, unless the answer was cut
        short.
        """
        reason, stop = REASONS[self._ended.reason], self._ended.stop
        calls = [block for block in self._blocks if block["type"] == "tool_use"]
        if reason == "end_turn" and calls and (stop is None or _arguments(calls[-1]) is not None):
            reason, stop = "tool_use", None
        return {"stop_reason": reason if stop is None else "stop_sequence", "stop_sequence": stop}

    def _usage(self) -> Json:
        return {
            "input_tokens": self._used.num_prompt_tokens - self._used.num_cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self._used.num_cached_tokens,
            "output_tokens": self._used.num_tokens,
        }


def _finished(block: Json) -> Json:
    """Return a block in final form: the arguments of a call become an object, an empty one if they are
    incomplete.
    """
    if block["type"] != "tool_use":
        return block
    arguments = _arguments(block)
    block.pop("json", None)
    return block | {"input": arguments if isinstance(arguments, dict) else {}}


def _arguments(call: Json) -> object:
    try:
        return jiter.from_json(call.get("json", "").encode() or b"{}", allow_inf_nan=False)
    except ValueError:
        return None
