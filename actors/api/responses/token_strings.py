"""The text of single tokens, as log probabilities show them.

A token that is part of a character has no text of its own: the one that completes the character shows it
whole, and those before it show nothing, as in vLLM.
"""

from itertools import takewhile
from typing import Protocol

from actors.core.params.logprobs import TokenLogprobs

CONTEXT_TOKENS = 4
"""A character of UTF-8 has at most four bytes."""
BROKEN_CHARACTER = "\ufffd"


class TokenTexts(Protocol):
    """The part of a TextCodec that is needed here."""

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str: ...

    def token_text(self, token_id: int) -> str: ...


class TokenStrings:
    """The texts of one sequence of tokens, of each as it comes and of the others in its place."""

    __slots__ = ("_codec", "_context")

    def __init__(self, codec: TokenTexts) -> None:
        self._codec = codec
        self._context: list[int] = []

    def read(self, entry: TokenLogprobs) -> dict[int, tuple[str, float, int]]:
        """Text, log probability and rank of the next token, and of the likeliest in its place, by id.

        The token itself is the first, as in vLLM.
        """
        ids = (entry.token_id, *entry.top_ids)
        logprobs = (entry.logprob, *entry.top_logprobs)
        ranks = (entry.rank, *range(1, len(entry.top_ids) + 1))
        found = {
            token_id: (self._text(token_id), logprob, rank)
            for token_id, logprob, rank in zip(ids, logprobs, ranks, strict=True)
        }
        self._context = [*self._context, entry.token_id][-CONTEXT_TOKENS:]
        return found

    def _text(self, token_id: int) -> str:
        text = self._codec.token_text(token_id)
        return self._completed(token_id) if text.endswith(BROKEN_CHARACTER) else text

    def _completed(self, token_id: int) -> str:
        """The character that this token completes, with what comes after it; empty if it completes none."""
        for length in range(1, len(self._context) + 1):
            before = self._context[-length:]
            whole = self._codec.decode([*before, token_id], skip_special_tokens=False)
            if whole.endswith(BROKEN_CHARACTER):
                continue
            while before and self._codec.token_text(before[-1]).endswith(BROKEN_CHARACTER):
                before.pop()
            text = self._codec.decode(before, skip_special_tokens=False) if before else ""
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, whole, strict=False)))
            return whole[same:]
        return ""
