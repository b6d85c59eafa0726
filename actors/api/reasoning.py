"""Reasoning that a model writes before its answer, between `<think>` and `</think>`, as the text grows.

Law: whatever way the text is cut into deltas, what is reasoning and what is content are the same.
"""

from actors.front.thought import BEGIN, END

STARTS_THINKING = {"deepseek_r1": True, "qwen3": False}
"""By the names that vLLM gives its parsers: whether an answer is reasoning before any mark says so."""


class ThoughtParser:
    """The reasoning of one answer; with `starts_thinking` its first mark may be missing."""

    def __init__(self, starts_thinking: bool) -> None:
        self._text = ""
        self._thinks: bool | None = None
        """None while the answer has not begun."""
        self._starts_thinking = starts_thinking

    def feed(self, text: str, is_last: bool) -> tuple[str, str]:
        """What the new text adds to the reasoning and to the content."""
        self._text += text
        if self._thinks is None:
            start = self._text.lstrip()
            if not is_last and BEGIN.startswith(start):
                return "", ""
            self._thinks = start.startswith(BEGIN) or self._starts_thinking
            if start.startswith(BEGIN):
                self._text = start[len(BEGIN) :]
        if not self._thinks:
            content, self._text = self._text, ""
            return "", content
        reasoning, mark, content = self._text.partition(END)
        if mark:
            self._thinks, self._text = False, ""
            return reasoning, content
        kept = 0 if is_last else overlap(reasoning, END)
        self._text = reasoning[len(reasoning) - kept :]
        return reasoning[: len(reasoning) - kept], ""


def overlap(text: str, mark: str) -> int:
    """How many of the text's last characters may be the beginning of the mark."""
    sizes = range(min(len(text), len(mark) - 1), 0, -1)
    return next((size for size in sizes if mark.startswith(text[-size:])), 0)
