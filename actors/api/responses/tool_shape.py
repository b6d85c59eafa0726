"""Chat completions whose answers may call tools or think aloud: text becomes content, calls and reasoning."""

from dataclasses import dataclass

from actors.api.reasoning import ThoughtParser
from actors.api.responses.shapes import ChatShape, Json
from actors.api.responses.view import ChoiceView
from actors.api.tool_calls import CallFormat, CallParser, CallPart
from actors.kernel.stream import Delta


@dataclass(frozen=True, slots=True)
class TextFormat:
    """How an answer's text is to be read.

    `calls` says how calls are written, `named` which function all content is the arguments of, `thinks`
    whether there may be reasoning, and whether it begins without its mark. Without `parallel` one call is
    shown, without `shows_thoughts` no reasoning. Reasoning that `ends_at_calls` is Qwen's.
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
    """What one choice has said so far."""

    def __init__(self, form: TextFormat) -> None:
        self._calls = None if form.calls is None else CallParser(form.calls)
        self._thoughts = None if form.thinks is None else ThoughtParser(form.thinks, form.ends_at_calls)
        self._form = form
        self._has_named = False

    @property
    def has_called(self) -> bool:
        return self._calls is not None and self._calls.has_called

    def feed(self, text: str, is_last: bool) -> tuple[str, str, list[CallPart]]:
        """The content, the reasoning and the parts of calls that the text adds."""
        reasoning, content = "", text
        if self._thoughts is not None:
            reasoning, content = self._thoughts.feed(text, is_last)
            reasoning = reasoning if self._form.shows_thoughts else ""
        if self._form.named is not None:
            return "", reasoning, self._arguments(self._form.named, content)
        if self._calls is None:
            return content, reasoning, []
        said = self._calls.feed(content)
        content = said.content + (self._calls.flush().content if is_last else "")
        parts = said.parts if self._form.parallel else [part for part in said.parts if part.index == 0]
        return content, reasoning, parts

    def _arguments(self, name: str, content: str) -> list[CallPart]:
        is_first, self._has_named = not self._has_named, True
        return [CallPart(0, name if is_first else None, content)] if content or is_first else []


class ToolShape(ChatShape):
    """Chat completions with calls and reasoning."""

    is_plain = False

    def __init__(self, role: str, form: TextFormat) -> None:
        super().__init__(role)
        self._form = form
        self._texts: dict[int, AnswerText] = {}

    def _text(self, view: ChoiceView) -> AnswerText:
        return self._texts.setdefault(view.choice.index, AnswerText(self._form))

    def _message(self, view: ChoiceView, delta: Delta) -> Json:
        text = self._text(view)
        content, reasoning, parts = text.feed(delta.text, is_last=True)
        entry = super()._message(view, delta)
        message = entry["message"]
        assert isinstance(message, dict)
        message["content"] = content if content or not (parts or reasoning) else None
        message["reasoning"] = reasoning or None
        if reasoning:
            message["reasoning_content"] = reasoning
        calls: dict[int, dict[str, str]] = {}
        for part in parts:
            call = calls.setdefault(part.index, {"name": part.name or "", "arguments": ""})
            call["arguments"] += part.arguments
        if calls:
            message["tool_calls"] = [
                {"id": _id(view, index), "type": "function", "function": call}
                for index, call in calls.items()
            ]
        return entry | {"finish_reason": _finish(delta, text)}

    def chunk(self, view: ChoiceView, delta: Delta, is_first: bool) -> Json:
        text, is_last = self._text(view), delta.finish_reason is not None
        content, reasoning, parts = text.feed(delta.text, is_last)
        shown: Json = {"content": content} if content or not (parts or reasoning) else {}
        if reasoning:
            shown["reasoning"] = shown["reasoning_content"] = reasoning
        if parts:
            shown["tool_calls"] = [_part(view, part) for part in parts]
        entry = super().chunk(view, delta, is_first) | {"delta": shown}
        return entry | {"finish_reason": _finish(delta, text)} if is_last else entry


def _part(view: ChoiceView, part: CallPart) -> Json:
    if part.name is None:
        return {"index": part.index, "function": {"arguments": part.arguments}}
    function = {"name": part.name, "arguments": part.arguments}
    return {"id": _id(view, part.index), "type": "function", "index": part.index, "function": function}


def _id(view: ChoiceView, index: int) -> str:
    return f"chatcmpl-tool-{view.choice.asked.request_id}-{view.choice.index}-{index}"


def _finish(delta: Delta, text: AnswerText) -> str | None:
    """A complete answer that calls ends with `tool_calls`; one whose function was named, with `stop`."""
    return "tool_calls" if delta.finish_reason == "stop" and text.has_called else delta.finish_reason
