"""Answers of an emulated model: built-in texts, a file of answers, or the prompt itself.

Law: every prompt has one answer, whatever else runs: the same seed and the same prompt give the same tokens.
An answer is followed by the end token, or by more text for a request that ignores it.
"""

import hashlib
import json
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice, repeat
from pathlib import Path
from typing import Protocol

from sundog.actors.config import ConfigError
from sundog.actors.core.batch import Admission
from sundog.actors.messages import ChatMessage

TEXTS: tuple[str, ...] = tuple(json.loads((Path(__file__).parent / "texts.json").read_text(encoding="utf-8")))
"""Four remarks about emulation, and stories written by the embedded model."""
MOST_ROWS = 1_000_000

Tokens = tuple[int, ...]
Choose = Callable[[Admission], Tokens]
"""Function that returns the answer to a request, without its end token; never empty."""


class Spelling(Protocol):
    """Part of a tokenizer that answers need."""

    def encode(self, text: str) -> list[int]: ...

    def encode_plain(self, text: str) -> list[int]: ...

    def encode_chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Return the tokens of a conversation; raises ValueError without a chat template."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str: ...


@dataclass(frozen=True, slots=True)
class Answers:
    """Answer to a request, and endless text for requests longer than the answer."""

    choose: Choose
    more: Tokens

    def script(self, admission: Admission, eos_token_id: int) -> Iterator[int]:
        """Yield the request's tokens: the answer, then the end token or more text."""
        tokens, sampling = self.choose(admission), admission.sampling
        if sampling.ignore_eos:
            return chain(tokens, cycle(self.more))
        padded = islice(cycle(self.more), max(sampling.min_tokens - len(tokens), 0))
        return chain(tokens, padded, repeat(eos_token_id))


def canned(spelling: Spelling, seed: int = 0) -> Answers:
    """Return one of the built-in texts, chosen by the prompt."""
    return Answers(picked([_plain(spelling, text) for text in TEXTS], seed), _more(spelling))


def echoed(spelling: Spelling) -> Answers:
    """Repeat the prompt, or the last message of a conversation, if the chat template shows it."""
    before, behind = _around_last_turn(spelling)
    more = _more(spelling)

    def choose(admission: Admission) -> Tokens:
        prompt = prompt_of(admission)
        if behind and prompt[-len(behind) :] == behind and (start := _last(before, prompt)) is not None:
            return prompt[start : -len(behind)] or more
        return prompt or more

    return Answers(choose, more)


def from_file(path: str, spelling: Spelling, seed: int = 0) -> Answers:
    """Return the answers in JSON lines: `answer`, and `prompt` if it answers only that one.

    A prompt matches as a plain text and as the only message of a user. A line with `last` answers every
    conversation in which no other such text occurs later: several of them lead an agent through its tools.
    All other requests get one of the answers without `last`, chosen by the prompt. ConfigError names the
    line.
    """
    by_prompt: dict[Tokens, Tokens] = {}
    by_last: dict[str, Tokens] = {}
    every: list[Tokens] = []
    for row in _rows(path):
        tokens = _plain(spelling, row.answer)
        if row.last is not None:
            by_last[row.last] = tokens
            continue
        every.append(tokens)
        if row.prompt is not None:
            by_prompt[tuple(spelling.encode(row.prompt))] = tokens
            if (turn := _conversation(spelling, row.prompt)) is not None:
                by_prompt[turn] = tokens
    if not every and not by_last:
        raise ConfigError(f"{path} has no answers: give at least one line like {EXAMPLE}")
    pick = picked(every or list(by_last.values()), seed)

    def choose(admission: Admission) -> Tokens:
        prompt = prompt_of(admission)
        if (tokens := by_prompt.get(prompt)) is None and by_last:
            text = spelling.decode(prompt)
            at, last = max((text.rfind(last), last) for last in by_last)
            tokens = by_last[last] if at >= 0 else None
        return tokens or pick(admission)

    return Answers(choose, _more(spelling))


@dataclass(frozen=True, slots=True)
class CannedAnswer:
    """Line of a file of answers."""

    answer: str
    prompt: str | None
    last: str | None


EXAMPLE = '{"prompt": "Hello", "answer": "Good day."}'


def _rows(path: str) -> Iterator[CannedAnswer]:
    try:
        with open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if number > MOST_ROWS:
                    raise ConfigError(f"{path} has more than {MOST_ROWS:,} lines: give fewer answers")
                if line.strip():
                    yield _row(line, f"{path}, line {number}")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None


def _row(line: str, where: str) -> CannedAnswer:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where} is not JSON ({error}): write {EXAMPLE}") from None
    if not isinstance(row, dict):
        raise ConfigError(f"{where} is not an object: write {EXAMPLE}")
    answer, prompt, last = row.get("answer"), row.get("prompt"), row.get("last")
    if not isinstance(answer, str) or not answer:
        raise ConfigError(f"{where}: answer is {answer!r}, and must be a non-empty text")
    if prompt is not None and not isinstance(prompt, str):
        raise ConfigError(f"{where}: prompt is {prompt!r}, and must be a text")
    if last is not None and (not isinstance(last, str) or not last or prompt is not None):
        raise ConfigError(f"{where}: last is {last!r}, and must be a text, not empty, without a prompt")
    return CannedAnswer(answer, prompt, last)


def picked(answers: Sequence[Tokens], seed: int) -> Choose:
    """Return one of the answers, by a hash of the seeds and the prompt."""

    def choose(admission: Admission) -> Tokens:
        digest = hashlib.blake2b(f"{seed}:{admission.sampling.seed}:".encode(), digest_size=8)
        digest.update(array("q", prompt_of(admission)).tobytes())
        return answers[int.from_bytes(digest.digest(), "big") % len(answers)]

    return choose


def prompt_of(admission: Admission) -> Tokens:
    """Return the request's prompt, without tokens generated before a preemption."""
    return (admission.token_ids or ())[: admission.num_prompt_tokens]


def _plain(spelling: Spelling, text: str) -> Tokens:
    tokens = tuple(spelling.encode_plain(text))
    if not tokens:
        raise ConfigError(f"the tokenizer has no tokens for the answer {text[:40]!r}: give another text")
    return tokens


def _more(spelling: Spelling) -> Tokens:
    return _plain(spelling, "".join(f" {text}" for text in TEXTS))


def _conversation(spelling: Spelling, *texts: str) -> Tokens | None:
    roles = cycle(("user", "assistant"))
    try:
        return tuple(spelling.encode_chat([ChatMessage(next(roles), text) for text in texts]))
    except ValueError:
        return None


def _around_last_turn(spelling: Spelling) -> tuple[Tokens, Tokens]:
    parts = [
        _around(_conversation(spelling, *earlier, "fox"), _conversation(spelling, *earlier, "Owl"))
        for earlier in ((), ("One", "Two"))
    ]
    (first, behind), (later, _) = parts
    return _end(first, later) if later else first, behind


def _around(one: Tokens | None, other: Tokens | None) -> tuple[Tokens, Tokens]:
    if one is None or other is None:
        return (), ()
    return _end(one[::-1], other[::-1])[::-1], _end(one, other)


def _end(one: Tokens, other: Tokens) -> Tokens:
    pairs = enumerate(zip(reversed(one), reversed(other), strict=False))
    count = next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))
    return one[len(one) - count :]


def _last(part: Tokens, tokens: Tokens) -> int | None:
    for end in range(len(tokens), len(part) - 1, -1):
        if tokens[end - len(part) : end] == part:
            return end
    return None
