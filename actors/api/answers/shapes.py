"""Answer shapes of the generating routes; all else about answering is shared.

Keys and nulls are vLLM's.
"""

import hashlib
import itertools
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sundog.actors.api.answers.choices import ChoiceView
from sundog.actors.api.answers.reasoning import ThoughtParser, starts_thinking
from sundog.actors.api.answers.tool_calls import (
    FORMATS,
    LISTED,
    ORDER,
    CallFormat,
    CallParser,
    CallPart,
    ParsedText,
)
from sundog.actors.api.bodies.structured import ToolChoice
from sundog.actors.api.context import AnswerFormats
from sundog.actors.api.errors import invalid
from sundog.actors.kernel.stream import Delta

Json = dict[str, object]
Whole = Sequence[tuple[ChoiceView, Delta]]
"""All choices of an answer, each as one delta."""


NOTHING: Json = dict.fromkeys(
    ("service_tier", "system_fingerprint", "kv_transfer_params", "ec_transfer_params", "metrics")
)
"""Fields of vLLM's whole answers that have no value here."""


class ResponseShape(Protocol):
    """Shape of a route's answers; `prompt_field` is the name of the prompt's field.

    If `is_plain`, a chunk shows a delta's text unchanged.
    """

    id_prefix: str
    prompt_field: str
    object: str
    chunk_object: str
    is_plain: bool

    def whole(self, choices: Whole) -> Json:
        """Return the fields of a whole answer except its head and usage."""
        ...

    def openings(self, views: Sequence[ChoiceView]) -> list[Json]:
        """Return the bodies of the chunks that precede all others."""
        ...

    def chunk(self, view: ChoiceView, delta: Delta, is_first: bool) -> Json:
        """Return the entry of a choice in a chunk."""
        ...

    def chunk_usage(self, usage: Json) -> Json:
        """Return the usage of a choice for a chunk in the middle of a stream."""
        ...


class CompletionShape:
    """Text completions in OpenAI's shape."""

    id_prefix = "cmpl-"
    prompt_field = "prompt"
    object = "text_completion"
    chunk_object = "text_completion"
    is_plain = True

    def whole(self, choices: Whole) -> Json:
        return NOTHING | {"choices": [self._choice(view, delta) for view, delta in choices]}

    def _choice(self, view: ChoiceView, delta: Delta) -> Json:
        beside: Json = {"prompt_logprobs": view.prompt_logprobs(delta), "routed_experts": None}
        return self.chunk(view, delta, is_first=True) | beside

    def openings(self, views: Sequence[ChoiceView]) -> list[Json]:
        return []

    def chunk(self, view: ChoiceView, delta: Delta, is_first: bool) -> Json:
        return {
            "index": view.choice.index,
            "text": view.text(delta, is_first),
            "logprobs": view.completion_logprobs(delta, is_first),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
            "prompt_token_ids": view.prompt_ids if is_first else None,
            "token_ids": view.token_ids(delta),
        }

    def chunk_usage(self, usage: Json) -> Json:
        return {name: value for name, value in usage.items() if value is not None}


class ChatShape:
    """Chat completions; the answer is a message of `role`."""

    id_prefix = "chatcmpl-"
    prompt_field = "messages"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    is_plain = True

    def __init__(self, role: str = "assistant") -> None:
        self._role = role

    def whole(self, choices: Whole) -> Json:
        first_view, first_delta = choices[0]
        return NOTHING | {
            "choices": [self._message(view, delta) for view, delta in choices],
            "prompt_logprobs": first_view.prompt_logprobs(first_delta),
            "prompt_token_ids": first_view.prompt_ids,
            "prompt_text": first_view.prompt_text,
        }

    def _message(self, view: ChoiceView, delta: Delta) -> Json:
        message = {
            "role": self._role,
            "content": view.text(delta, is_first=True),
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        }
        return {
            "index": view.choice.index,
            "message": message,
            "logprobs": view.chat_logprobs(delta),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
            "token_ids": view.token_ids(delta),
            "routed_experts": None,
        }

    def openings(self, views: Sequence[ChoiceView]) -> list[Json]:
        chunks: list[Json] = [
            {
                "choices": [_choice(view, {"role": self._role, "content": ""})],
                "prompt_token_ids": view.prompt_ids,
                "prompt_text": view.prompt_text,
            }
            for view in views
        ]
        return chunks + [
            {"choices": [_choice(view, {"content": echo})]}
            for view in views
            if (echo := view.text(Delta(), is_first=True))
        ]

    def chunk(self, view: ChoiceView, delta: Delta, is_first: bool) -> Json:
        choice = _choice(view, {"content": delta.text}) | {"logprobs": view.chat_logprobs(delta)}
        if delta.finish_reason is not None:
            choice |= {"finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason}
        return choice | {"token_ids": view.token_ids(delta)}

    def chunk_usage(self, usage: Json) -> Json:
        return usage


def _choice(view: ChoiceView, delta: Json) -> Json:
    return {"index": view.choice.index, "delta": delta, "logprobs": None, "finish_reason": None}


COMPLETION = CompletionShape()


@dataclass(frozen=True, slots=True)
class TextFormat:
    """How to parse an answer's text.

    `calls` is the format of calls, `named` a function whose arguments are all of the content, `thinks`
    whether there may be reasoning and whether it begins without a mark. Without `parallel` one call is shown,
    without `shows_thoughts` no reasoning. Reasoning that `ends_at_calls` is Qwen's.
    """

    calls: CallFormat | None = None
    named: str | None = None
    thinks: bool | None = None
    parallel: bool = True
    shows_thoughts: bool = True
    ends_at_calls: bool = False

    @property
    def is_plain(self) -> bool:
        return self.calls is None and self.named is None and self.thinks is None


class AnswerText:
    """Parser of a choice's text so far."""

    def __init__(self, form: TextFormat) -> None:
        self._calls = None if form.calls is None else CallParser(form.calls)
        self._thoughts = None if form.thinks is None else ThoughtParser(form.thinks, form.ends_at_calls)
        self._form = form
        self._has_named = self._is_cut = False

    @property
    def has_called(self) -> bool:
        """Whether the answer calls a function and the last shown call is complete."""
        return self._calls is not None and self._calls.has_called and not self._is_cut

    def feed(self, text: str, is_last: bool) -> tuple[str, ParsedText]:
        """Return the new reasoning, and the new content and parts of calls in order."""
        reasoning, content = "", text
        if self._thoughts is not None:
            reasoning, content = self._thoughts.feed(text, is_last)
            reasoning = reasoning if self._form.shows_thoughts else ""
        if self._form.named is not None:
            return reasoning, self._arguments(self._form.named, content)
        if self._calls is None:
            return reasoning, ParsedText([content] if content else [])
        said = self._calls.feed(content)
        if is_last:
            cut = self._calls.open_call
            self._is_cut = cut is not None and (self._form.parallel or cut == 0)
            said.add(self._calls.flush().content)
        if not self._form.parallel:
            said = ParsedText([each for each in said.said if isinstance(each, str) or each.index == 0])
        return reasoning, said

    def _arguments(self, name: str, content: str) -> ParsedText:
        is_first, self._has_named = not self._has_named, True
        part = CallPart(0, name if is_first else None, content)
        return ParsedText([part] if content or is_first else [])


class ToolShape(ChatShape):
    """Chat completions with tool calls and reasoning; `tells_order` preserves their order for conversion
    to another API.
    """

    is_plain = False

    def __init__(self, role: str, form: TextFormat, *, tells_order: bool = False) -> None:
        super().__init__(role)
        self._form = form
        self._tells_order = tells_order
        self._texts: dict[int, AnswerText] = {}

    def _text(self, view: ChoiceView) -> AnswerText:
        return self._texts.setdefault(view.choice.index, AnswerText(self._form))

    def _message(self, view: ChoiceView, delta: Delta) -> Json:
        text = self._text(view)
        reasoning, said = text.feed(delta.text, is_last=True)
        content, parts = said.content, said.parts
        entry = super()._message(view, delta)
        message = entry["message"]
        assert isinstance(message, dict)
        message["content"] = content if content or not (parts or reasoning) else None
        message["reasoning"] = reasoning or None
        if reasoning:
            message["reasoning_content"] = reasoning
        calls: dict[int, dict[str, str]] = {}
        order = list[str | int]()
        for piece in said.said:
            if isinstance(piece, str):
                order.append(piece)
                continue
            if piece.index not in calls:
                order.append(len(calls))
            call = calls.setdefault(piece.index, {"name": piece.name or "", "arguments": ""})
            call["arguments"] += piece.arguments
        if calls:
            message["tool_calls"] = [
                {"id": _id(view, index), "type": "function", "function": call}
                for index, call in calls.items()
            ]
        if self._tells_order:
            message[ORDER] = order
        return entry | {"finish_reason": _finish(delta, text)}

    def chunk(self, view: ChoiceView, delta: Delta, is_first: bool) -> Json:
        text, is_last = self._text(view), delta.finish_reason is not None
        reasoning, said = text.feed(delta.text, is_last)
        content, parts = said.content, said.parts
        shown: Json = {"content": content} if content or not (parts or reasoning) else {}
        if reasoning:
            shown["reasoning"] = shown["reasoning_content"] = reasoning
        if parts:
            shown["tool_calls"] = [_part(view, part) for part in parts]
        if self._tells_order:
            numbers = itertools.count()
            shown[ORDER] = [piece if isinstance(piece, str) else next(numbers) for piece in said.said]
        entry = super().chunk(view, delta, is_first) | {"delta": shown}
        return entry | {"finish_reason": _finish(delta, text)} if is_last else entry


def _part(view: ChoiceView, part: CallPart) -> Json:
    if part.name is None:
        return {"index": part.index, "function": {"arguments": part.arguments}}
    function = {"name": part.name, "arguments": part.arguments}
    return {"id": _id(view, part.index), "type": "function", "index": part.index, "function": function}


def _id(view: ChoiceView, index: int) -> str:
    """Return the id of a call: Mistral's templates need nine letters or digits, OpenAI allows 40."""
    name = f"{view.choice.asked.request_id} {view.choice.index} {index}"
    number = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())
    return "".join(LETTERS[number // len(LETTERS) ** at % len(LETTERS)] for at in range(9))


LETTERS = string.ascii_letters + string.digits


def _finish(delta: Delta, text: AnswerText) -> str | None:
    return "tool_calls" if delta.finish_reason == "stop" and text.has_called else delta.finish_reason


def text_format(
    choice: ToolChoice, parallel: bool, is_constrained: bool, may_think: bool, answers: AnswerFormats
) -> TextFormat:
    """Return how to parse an answer; raises 400 if calls cannot be distinguished from text.

    An answer under a grammar from its first token begins with no unmarked reasoning.
    """
    thinks = None
    if answers.reasoning_parser is not None:
        at_once = is_constrained and answers.thought is None
        thinks = starts_thinking(answers.reasoning_parser, may_think) and not at_once
    match choice.kind:
        case "named":
            return TextFormat(named=choice.name, thinks=thinks)
        case "required":
            return TextFormat(LISTED, thinks=thinks, parallel=parallel)
        case "auto":
            if not answers.auto_tools or answers.tool_call_parser is None:
                raise invalid(
                    'tool_choice "auto" needs a server with --enable-auto-tool-choice and --tool-call-parser:'
                    ' send "required", "none" or a function.',
                    "tool_choice",
                )
            return TextFormat(FORMATS[answers.tool_call_parser], None, thinks, parallel)
        case "none":
            return TextFormat(thinks=thinks)
