"""Tokens to text, one by one, as soon as it is certain; without torch."""

from collections.abc import Mapping, Sequence

from tokenizers import Tokenizer as FastTokenizer
from tokenizers.decoders import DecodeStream

# A decoder needs a few tokens before the first new one, to know whether a space is due.
CONTEXT_TOKENS = 8
CUT_OFF = "\ufffd"
"""What stands for bytes that are no character yet."""
CHANGED_TEXT = "Invalid prefix encountered"
"""The library's words where more tokens have changed the text of those before."""


class Decoder:
    """The text of one stream of tokens, as soon as it is certain; special tokens have none if skipped.

    A character that the end of the stream cuts off has no text, as in vLLM. One that the prompt cuts off
    is the stream's if the stream completes it; the prompt's own text is never said again.
    `unspaced` holds the texts of tokens between which no space is put.
    """

    def __init__(
        self,
        tokenizer: FastTokenizer,
        prompt_ids: Sequence[int],
        skip_special_tokens: bool = True,
        unspaced: Mapping[int, str] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._unspaced = unspaced or {}
        self._cut_off = ""
        self._stream = self._begin(list(prompt_ids[-CONTEXT_TOKENS:]))
        self._last_is_special = False

    def _begin(self, context: list[int]) -> DecodeStream:
        """A stream behind these tokens; the library's would say them again if a character is cut off."""

        def text(num_tokens: int) -> str:
            return str(self._tokenizer.decode(context[:num_tokens], skip_special_tokens=self._skip))

        num_whole = len(context)
        while num_whole and text(num_whole).endswith(CUT_OFF):
            num_whole -= 1
        stream = DecodeStream(context[:num_whole], skip_special_tokens=self._skip)
        if num_whole < len(context):
            self._cut_off = text(len(context))[len(text(num_whole)) :]
            for token_id in context[num_whole:]:
                stream.step(self._tokenizer, token_id)
        return stream

    def step(self, token_id: int) -> str:
        """The text that this token makes certain, "" inside of a character."""
        text = self._next(token_id)
        if self._cut_off and text:
            text, self._cut_off = text.removeprefix(self._cut_off), ""
        if self._unspaced:
            is_special = token_id in self._unspaced
            if is_special and self._last_is_special:
                text = self._unspaced[token_id]
            self._last_is_special = is_special
        return "" if text is None else str(text)

    def _next(self, token_id: int) -> str | None:
        """The stream's own text; bytes that are no character may change what is before them, as in vLLM."""
        try:
            return self._stream.step(self._tokenizer, token_id)
        except Exception as error:  # the library raises bare Exception
            if not str(error).startswith(CHANGED_TEXT):
                raise
        self._stream, self._cut_off = DecodeStream([], skip_special_tokens=self._skip), ""
        return self._stream.step(self._tokenizer, token_id)
