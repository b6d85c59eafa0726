"""Reasoning before an answer, between `<think>` and `</think>`, parsed as the text grows.

Law: the split into reasoning and content does not depend on how the text is cut into deltas.
"""

from sundog.actors.front.codec import BEGIN, CALL, END, ThoughtMarks
from sundog.actors.kernel.stream import Delta


def starts_thinking(parser: str, may_think: bool) -> bool:
    """Return whether an answer starts with reasoning without a mark; parsers have vLLM's names.

    Templates of Qwen may already have written the first mark; `may_think` is their `enable_thinking`.
    """
    return parser == "deepseek_r1" or may_think


class ThoughtCount:
    """Counter of an answer's reasoning tokens, without marks and the end token.

    Reasoning that `ends_at_calls` ends at the mark of a call, as in `ThoughtParser`.
    """

    def __init__(self, marks: ThoughtMarks, starts_thinking: bool, ends_at_calls: bool = False) -> None:
        self._marks = marks
        self._thinks = starts_thinking
        self._ends = (marks.end, marks.call) if ends_at_calls else (marks.end,)
        self.num_tokens = 0

    def feed(self, delta: Delta) -> None:
        """Count the new tokens that are reasoning."""
        has_end_token = delta.finish_reason == "stop" and not isinstance(delta.stop_reason, str)
        for token in delta.token_ids[:-1] if has_end_token else delta.token_ids:
            if token == self._marks.begin:
                self._thinks = True
            elif token in self._ends:
                self._thinks = False
            elif self._thinks:
                self.num_tokens += 1


class ThoughtParser:
    """Parser of one answer's reasoning; with `starts_thinking` the first mark may be missing.

    Opening marks within reasoning are dropped. For Qwen's models (`ends_at_calls`) the mark of a call ends
    reasoning, too, and further closing marks are dropped from the content, as in vLLM.
    """

    def __init__(self, starts_thinking: bool, ends_at_calls: bool = False) -> None:
        self._text = ""
        self._thinks: bool | None = None
        """Whether the parser is within reasoning; None before the answer has begun."""
        self._starts_thinking = starts_thinking
        self._ends_at_calls = ends_at_calls
        self._marks = (BEGIN, END, CALL) if ends_at_calls else (BEGIN, END)

    def feed(self, text: str, is_last: bool) -> tuple[str, str]:
        """Return what the new text adds to the reasoning and to the content."""
        self._text += text
        if self._thinks is None:
            start = self._text.lstrip()
            if not is_last and BEGIN.startswith(start):
                return "", ""
            self._thinks = start.startswith(BEGIN) or self._starts_thinking
            if start.startswith(BEGIN):
                self._text = start[len(BEGIN) :]
        reasoning = ""
        while self._thinks:
            more, mark = self._until(self._marks, is_last)
            reasoning += more
            if mark is None:
                return reasoning, ""
            self._thinks = mark == BEGIN
            self._text = mark + self._text if mark == CALL else self._text
        return reasoning, self._content(is_last)

    def _content(self, is_last: bool) -> str:
        if not self._ends_at_calls:
            content, self._text = self._text, ""
            return content
        content, mark = self._until((END,), is_last)
        while mark is not None:
            more, mark = self._until((END,), is_last)
            content += more
        return content

    def _until(self, marks: tuple[str, ...], is_last: bool) -> tuple[str, str | None]:
        found = [(at, mark) for mark in marks if (at := self._text.find(mark)) >= 0]
        if found:
            at, mark = min(found)
            before, self._text = self._text[:at], self._text[at + len(mark) :]
            return before, mark
        kept = 0 if is_last else max(overlap(self._text, mark) for mark in marks)
        before, self._text = self._text[: len(self._text) - kept], self._text[len(self._text) - kept :]
        return before, None


def overlap(text: str, mark: str) -> int:
    """Return the number of last characters of the text that may be the beginning of the mark."""
    sizes = range(min(len(text), len(mark) - 1), 0, -1)
    return next((size for size in sizes if mark.startswith(text[-size:])), 0)
