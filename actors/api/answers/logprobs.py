"""Log probabilities in the shapes of text completions, chat, and vLLM's prompt_logprobs.

JSON has no infinity: minus infinity becomes -9999, as in OpenAI's API.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import Protocol

from sundog.actors.core.params.logprobs import TokenLogprobs

CONTEXT_TOKENS = 4
"""Tokens of context needed to decode one: a character of UTF-8 has at most four bytes."""
BROKEN_CHARACTER = "\ufffd"


class TokenTexts(Protocol):
    """Methods of a TextCodec that log probabilities need."""

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str: ...

    def token_text(self, token_id: int) -> str: ...


class TokenStrings:
    """Texts of the tokens of a sequence, and of the alternatives to each."""

    def __init__(self, codec: TokenTexts) -> None:
        self._codec = codec
        self._context: list[int] = []

    def read(self, entry: TokenLogprobs) -> dict[int, tuple[str, float, int]]:
        """Return text, log probability and rank of the next token and of its likeliest alternatives, by id.

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
        """Return the character that this token completes, followed by the text of later tokens; empty if
        it completes none.
        """
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


Json = dict[str, object]

LEAST = -9999.0


class Logprobs:
    """Log probabilities of one choice, delta by delta.

    `count` likeliest tokens are listed for each, -1 for all. With `as_ids` a token is written as its id.
    """

    def __init__(self, codec: TokenTexts, count: int, as_ids: bool) -> None:
        self._codec = codec
        self._count = count
        self._as_ids = as_ids
        self._strings = TokenStrings(codec)
        self._offset = 0

    def completion(
        self, echoed_ids: Sequence[int], echoed: Sequence[TokenLogprobs | None], new: Sequence[TokenLogprobs]
    ) -> Json:
        """Return OpenAI's old shape: four lists with an entry per token, the prompt's first if it is
        echoed.
        """
        tokens: list[str] = []
        logprobs: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        offsets: list[int] = []
        prompt = TokenStrings(self._codec)
        pairs = [(entry, prompt) for entry in echoed] + [(entry, self._strings) for entry in new]
        for index, (entry, strings) in enumerate(pairs):
            offsets.append(self._offset)
            if entry is None:
                tokens.append(self._shown(echoed_ids[index], self._codec.token_text(echoed_ids[index])))
                logprobs.append(None)
                tops.append(None)
            else:
                found = strings.read(entry)
                tokens.append(self._shown(entry.token_id, found[entry.token_id][0]))
                logprobs.append(max(entry.logprob, LEAST))
                listed = list(found.items())
                listed = listed if self._count == -1 else listed[: self._count + 1]
                tops.append({self._shown(i, text): max(value, LEAST) for i, (text, value, _) in listed})
            self._offset += len(tokens[-1])
        return {"text_offset": offsets, "token_logprobs": logprobs, "tokens": tokens, "top_logprobs": tops}

    def chat(self, new: Sequence[TokenLogprobs]) -> Json:
        """Return the shape of chat completions: an object for each token, with its bytes."""
        return {"content": [self._content(entry) for entry in new]}

    def _content(self, entry: TokenLogprobs) -> Json:
        found = self._strings.read(entry)
        text = found[entry.token_id][0]
        listed = list(found.items())
        tops = [
            {"token": shown, "logprob": max(value, LEAST), "bytes": list(shown.encode())}
            for token_id, (each, value, _) in (listed if self._count == -1 else listed[: self._count])
            for shown in (self._shown(token_id, each),)
        ]
        return {
            "token": self._shown(entry.token_id, text),
            "logprob": max(entry.logprob, LEAST),
            "bytes": list(text.encode()),
            "top_logprobs": tops,
        }

    def _shown(self, token_id: int, text: str) -> str:
        return f"token_id:{token_id}" if self._as_ids else text


def prompt_logprobs(codec: TokenTexts, entries: Sequence[TokenLogprobs | None]) -> list[Json | None]:
    """Return vLLM's shape: for each prompt token an object by token id, null for the first."""
    strings = TokenStrings(codec)
    return [None if entry is None else _by_id(strings.read(entry)) for entry in entries]


def _by_id(found: dict[int, tuple[str, float, int]]) -> Json:
    return {
        str(token_id): {"logprob": max(logprob, LEAST), "rank": rank, "decoded_token": text}
        for token_id, (text, logprob, rank) in found.items()
    }
