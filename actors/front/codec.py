"""The model's tokenizer as AsyncLLM needs it: text to tokens and back, known ids, the marks of reasoning."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sundog.actors.core.params.sampling import Constraint, Sampling
from sundog.actors.messages import PLAIN_READING, ChatMessage, Reading

BEGIN, END, CALL = "<think>", "</think>", "<tool_call>"


@dataclass(frozen=True, slots=True)
class ThoughtMarks:
    """The tokens that begin and end reasoning; `call`, where it is one token, begins a call."""

    begin: int
    end: int
    call: int | None = None

    @classmethod
    def of(cls, encode: Callable[[str], list[int]]) -> "ThoughtMarks | None":
        """Return the marks of a tokenizer; None if they are not one token each."""
        begin, end, call = encode(BEGIN), encode(END), encode(CALL)
        if not (len(begin) == len(end) == 1 and begin != end):
            return None
        return cls(begin[0], end[0], call[0] if len(call) == 1 else None)

    def awaited(self, prompt: Sequence[int]) -> int | None:
        """The token that ends reasoning, or None if the prompt has ended it: as vLLM, by its last mark."""
        marks = (token for token in reversed(prompt) if token in (self.begin, self.end))
        return None if next(marks, self.begin) == self.end else self.end


def with_thought(sampling: Sampling, marks: ThoughtMarks, prompt: Sequence[int]) -> Sampling:
    """The sampling parameters with what they need to know of reasoning, if they need anything."""
    if sampling.constraint is not None:
        sampling = replace(sampling, constraint_after=marks.awaited(prompt))
    if sampling.thinking_token_budget is not None:
        sampling = replace(sampling, thought=(marks.begin, marks.end))
    return sampling


class TokenDecoder(Protocol):
    """Turns one request's tokens into text, one after another."""

    def step(self, token_id: int) -> str:
        """The text that this token completes; empty in the middle of a character."""
        ...


class TooManyTokens(Exception):
    """A prompt has at least `num_tokens` tokens, which is more than `most_tokens`."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__(f"at least {num_tokens} tokens")
        self.num_tokens = num_tokens


class TextCodec(Protocol):
    """Text to tokens and back, from any thread.

    A prompt of more than `most_tokens` tokens is TooManyTokens, which may be certain before tokenising.
    """

    def encode(
        self, text: str, most_tokens: int | None = None, add_special_tokens: bool = True
    ) -> list[int]: ...

    def encode_plain(self, text: str) -> list[int]:
        """The tokens of a piece of text alone, without what the tokenizer puts around a prompt."""
        ...

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        most_tokens: int | None = None,
        reading: Reading = PLAIN_READING,
    ) -> list[int]:
        """Tokens of a conversation; raises ValueError if the model has no chat template for it."""
        ...

    def decoder(
        self,
        prompt_ids: Sequence[int],
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> TokenDecoder:
        """Return what turns the tokens after `prompt_ids` into text."""
        ...

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of all tokens at once."""
        ...

    def token_name(self, token_id: int) -> str | None:
        """Return how the vocabulary spells a token; None if there is no such token."""
        ...

    def info(self) -> dict[str, object]:
        """The tokenizer's configuration, as JSON."""
        ...

    def token_text(self, token_id: int) -> str:
        """The text of one token alone, with the space that it begins with; special ones are shown."""
        ...


class GrammarChecker(Protocol):
    """Compiles what answers must look like, from any thread."""

    def knows(self, constraint: Constraint) -> bool:
        """Return True if checking a constraint takes no time."""
        ...

    def check(self, constraint: Constraint) -> None:
        """Raises ValueError, with the reason, for a constraint that no answer is held to."""
        ...


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The token ids of a model: how many there are, and which of them end an answer.

    Where tokens are only counted, all fields are unset. `stop_token_ids` are further end tokens besides
    `eos_token_id`. `grammars` None refuses constraints. With `thought` they hold from the end
    of the model's reasoning on.
    """

    eos_token_id: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    size: int | None = None
    grammars: GrammarChecker | None = None
    thought: ThoughtMarks | None = None
