"""Chat answers as OpenAI responses, whole or streamed."""

from collections.abc import Iterator

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
from sundog.actors.api.bodies.responses import Format, Function, ResponseBody
from sundog.actors.core.params.sampling import Sampling

ABSENT: Json = dict.fromkeys(
    ("prompt", "kv_transfer_params", "ec_transfer_params", "input_messages", "output_messages")
)
"""Fields of vLLM's responses that have no value here."""


def repeated(body: ResponseBody, sampling: Sampling, room_tokens: int, keeps: bool) -> Json:
    """Return the fields that a response starts with; `room_tokens` is the context left after the prompt.

    `keeps` is whether the server stores responses for later reference.
    """
    most = body.max_output_tokens
    return ABSENT | {
        "instructions": body.instructions,
        "metadata": body.metadata,
        "parallel_tool_calls": body.parallel_tool_calls,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "tool_choice": body.tool_choice if body.functions else "none",
        "tools": [_repeated_tool(tool) for tool in body.functions],
        "background": False,
        "max_output_tokens": room_tokens if most is None else min(most, room_tokens),
        "max_tool_calls": body.max_tool_calls,
        "previous_response_id": body.previous_response_id,
        "reasoning": _repeated_reasoning(body),
        "service_tier": body.service_tier or "auto",
        "text": None
        if body.text is None
        else {"format": _repeated_format(body.text.format), "verbosity": None},
        "top_logprobs": body.top_logprobs,
        "truncation": body.truncation,
        "user": body.user,
        "store": body.store and keeps,
    }


def _repeated_tool(tool: Function) -> Json:
    shown = {"name": tool.name, "parameters": tool.parameters, "strict": tool.strict, "type": tool.type}
    absent = dict.fromkeys(("allowed_callers", "async", "defer_loading", "output_schema"))
    return absent | shown | {"description": tool.description}


def _repeated_reasoning(body: ResponseBody) -> Json | None:
    if (asked := body.reasoning) is None:
        return None
    absent = dict.fromkeys(("context", "generate_summary", "mode"))
    return absent | {"effort": asked.effort, "summary": asked.summary}


def _repeated_format(form: Format) -> Json:
    if form.type != "json_schema":
        return {"type": form.type}
    shown = {"name": form.name, "schema": form.schema_, "type": form.type}
    return shown | {"description": form.description, "strict": form.strict}


Event = tuple[str, Json]
NO_INPUT_DETAILS: Json = {"cache_write_tokens": 0, "input_tokens_per_turn": [], "cached_tokens_per_turn": []}
NO_OUTPUT_DETAILS: Json = {
    "tool_output_tokens": 0,
    "output_tokens_per_turn": [],
    "tool_output_tokens_per_turn": [],
}
"""Fields in which vLLM counts tools that the server runs; always zero here."""


class ResponseObject:
    """Response under construction: items that are messages, reasoning or calls.

    `asked` holds the request's fields that the response repeats.
    """

    def __init__(self, response_id: str, model: str, created: int, asked: Json) -> None:
        own = {"id": response_id, "object": "response", "created_at": created, "model": model}
        self._head: Json = asked | own
        self._items: list[Json] = []
        self._kind: tuple[str, int] | None = None
        """Kind of the last item: message, reasoning, or the call of this number."""
        self._used = UsedPart(0, 0, 0)
        self._status = "in_progress"
        self._error: Json | None = None
        self._cut_by: str | None = None

    def as_json(self) -> Json:
        """Return the response so far."""
        is_over = self._status in ("completed", "incomplete")
        return self._head | {
            "status": self._status,
            "error": self._error,
            "incomplete_details": None if self._cut_by is None else {"reason": self._cut_by},
            "output": [dict(item) for item in self._items],
            "usage": self._usage() if is_over else None,
        }

    def with_a_message(self) -> Json:
        """Return the whole response, with an empty message if it has no text."""
        if not self._items:
            self._items.append(_item("message", self._item_id("message")) | {"status": self._status})
        return self.as_json()

    def take(self, part: Part) -> list[Event]:
        """Add a part and return its events."""
        match part:
            case UsedPart():
                self._used = part
            case SaidPart():
                return list(self._said(part, "reasoning" if part.is_reasoning else "message"))
            case CalledPart():
                return list(self._call(part))
            case EndedPart():
                return list(self._end(part))
            case FailedPart():
                self._status = "failed"
                self._error = {"code": "server_error", "message": part.message}
        return []

    @property
    def is_in_progress(self) -> bool:
        return self._status == "in_progress"

    def cancel(self) -> None:
        """Mark the response as cancelled by its client."""
        self._status = "cancelled"

    def _said(self, part: SaidPart, kind: str) -> Iterator[Event]:
        name = "output_text" if kind == "message" else "reasoning_text"
        if self._kind != (kind, 0):
            yield from self._begin((kind, 0), _item(kind, self._item_id(kind)))
            yield "response.content_part.added", self._place() | {"content_index": 0, "part": _part(name, "")}
            self._items[-1]["content"] = [_part(name, "")]
        content = self._items[-1]["content"][0]
        content["text"] += part.text
        more: Json = {"content_index": 0, "delta": part.text}
        if kind == "message":
            content["logprobs"] += part.logprobs
            more["logprobs"] = [_without_bytes(each) for each in part.logprobs]
        yield f"response.{name}.delta", self._place() | more

    def _call(self, part: CalledPart) -> Iterator[Event]:
        if self._kind != ("call", part.index):
            item = {
                "type": "function_call",
                "id": self._item_id("fc"),
                "call_id": part.call_id,
                "name": part.name,
                "arguments": "",
                "status": "in_progress",
            }
            yield from self._begin(("call", part.index), item)
        self._items[-1]["arguments"] += part.arguments
        if part.arguments:
            yield "response.function_call_arguments.delta", self._place() | {"delta": part.arguments}

    def _begin(self, kind: tuple[str, int], item: Json) -> Iterator[Event]:
        yield from self._complete("completed")
        self._kind = kind
        self._items.append(item)
        place = {"output_index": len(self._items) - 1}
        yield "response.output_item.added", place | {"item": dict(item)}

    def _complete(self, status: str) -> Iterator[Event]:
        if self._kind is None:
            return
        item, place = self._items[-1], self._place()
        item["status"] = status
        if self._kind[0] == "call":
            yield (
                "response.function_call_arguments.done",
                place | {"arguments": item["arguments"], "name": item["name"]},
            )
        else:
            name, part = "output_text" if self._kind[0] == "message" else "reasoning_text", item["content"][0]
            logprobs: Json = {"logprobs": part["logprobs"]} if name == "output_text" else {}
            if name == "output_text":
                part["logprobs"] = part["logprobs"] or None
            yield f"response.{name}.done", place | {"content_index": 0, "text": part["text"]} | logprobs
            yield "response.content_part.done", place | {"content_index": 0, "part": dict(part)}
        yield "response.output_item.done", {"output_index": len(self._items) - 1, "item": dict(item)}
        self._kind = None

    def _end(self, ended: EndedPart) -> Iterator[Event]:
        self._cut_by = "max_output_tokens" if ended.reason == "length" else None
        self._status = "incomplete" if self._cut_by else "completed"
        yield from self._complete(self._status)

    def _place(self) -> Json:
        return {"output_index": len(self._items) - 1, "item_id": self._items[-1]["id"]}

    def _item_id(self, kind: str) -> str:
        short = {"message": "msg", "reasoning": "rs"}.get(kind, kind)
        return f"{short}_{self._head['id'].removeprefix('resp_')}_{len(self._items)}"

    def _usage(self) -> Json:
        used = self._used
        return {
            "input_tokens": used.num_prompt_tokens,
            "input_tokens_details": {"cached_tokens": used.num_cached_tokens} | NO_INPUT_DETAILS,
            "output_tokens": used.num_tokens,
            "output_tokens_details": {"reasoning_tokens": used.num_thoughts} | NO_OUTPUT_DETAILS,
            "total_tokens": used.num_prompt_tokens + used.num_tokens,
        }

    def answer(self) -> list[Json]:
        """Return the assistant's output as messages for the following turns."""
        messages = [item for item in self._items if item["type"] == "message"]
        texts = [part["text"] for item in messages for part in item["content"]]
        calls = [
            {"id": item["call_id"], "function": {"name": item["name"], "arguments": item["arguments"]}}
            for item in self._items
            if item["type"] == "function_call"
        ]
        message: Json = {"role": "assistant", "content": "".join(texts)}
        return [message | ({"tool_calls": calls} if calls else {})]


def _item(kind: str, item_id: str) -> Json:
    item: Json = {"type": kind, "id": item_id, "status": "in_progress", "content": []}
    if kind == "message":
        return item | {"role": "assistant", "phase": None}
    return item | {"summary": [], "encrypted_content": None}


def _without_bytes(logprob: Json) -> Json:
    shown = {name: value for name, value in logprob.items() if name != "bytes"}
    tops = [{name: each[name] for name in ("token", "logprob")} for each in shown.get("top_logprobs") or ()]
    return shown | {"top_logprobs": tops}


def _part(name: str, text: str) -> Json:
    shown: Json = {"annotations": [], "logprobs": []} if name == "output_text" else {}
    return {"type": name, "text": text} | shown


def whole_response(response: ResponseObject, chat: Chunk) -> Json:
    """Convert a chat completion to a response."""
    for part in parts_of(chat):
        response.take(part)
    return response.with_a_message()


class ResponseEvents:
    """Numbered events of a streamed response."""

    def __init__(self, response: ResponseObject) -> None:
        self._response = response
        self._number = -1

    def _event(self, name: str, body: Json) -> bytes:
        self._number += 1
        return sse(name, body | {"sequence_number": self._number})

    def take(self, part: Part) -> bytes:
        response, written = self._response, b""
        if self._number < 0:
            for name in ("response.created", "response.in_progress"):
                written += self._event(name, {"response": response.as_json()})
        if response.is_in_progress or isinstance(part, UsedPart):
            written += b"".join([self._event(name, body) for name, body in response.take(part)])
        return written

    def last(self) -> bytes:
        whole = self._response.as_json()
        return self._event(f"response.{whole['status']}", {"response": whole})
