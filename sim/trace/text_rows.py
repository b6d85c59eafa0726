"""Traces of texts: ShareGPT's conversations, and prompts with answers; a tokenizer counts them.

Neither has instants: everything arrives at once, unless the replay is given a rate. With the text
at hand, equal beginnings of prompts are known, and the prefix cache may hit.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from sim.files.lines import decode, parse_object
from sim.trace.record import TraceError, TraceRequest, default_id

BLOCK_TOKENS = 16
"""Tokens that one id names; other block sizes than its multiples and divisors are refused."""


def load_tokenizer(path: str) -> Tokenizer:
    """A `tokenizer.json`, or the folder of a model with one."""
    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise TraceError(str(file), 1, "there is no such tokenizer file")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001 (the library raises Exception itself)
        raise TraceError(str(file), 1, f"not a tokenizer: {error}") from None


class Texts:
    """Turns pairs of prompt and answer into requests."""

    def __init__(self, path: str, tokenizer: Tokenizer) -> None:
        self._path, self._tokenizer = path, tokenizer
        self._ids: dict[tuple[int, ...], int] = {}

    def request(self, number: int, index: int, prompt: str, output: str | int) -> TraceRequest:
        """Make one row; raises TraceError where either side has no token."""
        tokens = self._tokenizer.encode(prompt).ids
        if isinstance(output, str):
            num_output = len(self._tokenizer.encode(output, add_special_tokens=False).ids)
        else:
            num_output = output
        for name, count in (("prompt", len(tokens)), ("answer", num_output)):
            if count < 1:
                raise TraceError(self._path, number, f"{count} tokens; at least 1 is needed", name)
        return TraceRequest(
            default_id(index), 0.0, len(tokens), num_output, self._hash_ids(tokens), BLOCK_TOKENS
        )

    def _hash_ids(self, tokens: list[int]) -> tuple[int, ...]:
        """A number for each full block and all before it."""
        ids, parent = [], -1
        for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            key = (parent, *tokens[start : start + BLOCK_TOKENS])
            parent = self._ids.setdefault(key, len(self._ids))
            ids.append(parent)
        return tuple(ids)


def prompt_rows(path: str, lines: Iterable[bytes], texts: Texts) -> Iterator[TraceRequest]:
    """JSON lines with `prompt` and either `output_tokens` or the answer as `completion`."""
    for index, line in enumerate(lines):
        values = parse_object(path, index + 1, line, TraceError)
        prompt = _text(path, index + 1, values, "prompt")
        output = values.get("output_tokens")
        if output is None:
            output = _text(path, index + 1, values, "completion")
        elif type(output) is not int:
            raise TraceError(path, index + 1, f"{output!r} is not a whole number", "output_tokens")
        yield texts.request(index + 1, index, prompt, output)


def sharegpt_rows(path: str, lines: Iterable[bytes], texts: Texts) -> Iterator[TraceRequest]:
    """The first question and answer of each conversation, as `vllm bench` takes them.

    One JSON list, or a conversation a line. Conversations of one turn have no answer to repeat, and
    are left out as there.
    """
    index = 0
    for number, values in _conversations(path, lines):
        turns = values.get("conversations", values.get("conversation"))
        if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
            raise TraceError(path, number, "it must be a list of turns", "conversations")
        if len(turns) < 2:
            continue
        prompt, answer = (_text(path, number, turn, "value") for turn in turns[:2])
        yield texts.request(number, index, prompt, answer)
        index += 1
    if not index:
        raise TraceError(path, 1, "there is no conversation with an answer")


def _conversations(path: str, lines: Iterable[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each conversation with its line, or with its place in the list."""
    rest = iter(lines)
    first = next(rest)
    if first.lstrip().startswith(b"{"):
        yield 1, parse_object(path, 1, first, TraceError)
        for number, line in enumerate(rest, 2):
            yield number, parse_object(path, number, line, TraceError)
        return
    values = decode(path, 1, b"\n".join([first, *rest]), TraceError)
    if not isinstance(values, list):
        raise TraceError(path, 1, "it must be a list of conversations")
    for number, value in enumerate(values, 1):
        if not isinstance(value, dict):
            raise TraceError(path, number, "conversation is not a JSON object")
        yield number, value


def _text(path: str, number: int, values: dict[str, Any], key: str) -> str:
    value = values.get(key)
    if not isinstance(value, str):
        reason = "missing" if value is None else f"{value!r:.40} is not text"
        raise TraceError(path, number, reason, key)
    return value
