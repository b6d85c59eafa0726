"""Interface of the model's tokenizer for AsyncLLM: encoding, decoding, known ids, reasoning marks."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from sundog.actors.core.params.sampling import Constraint, Sampling
from sundog.actors.core.records import dataclass
from sundog.actors.messages import PLAIN_READING, ChatMessage, Reading

BEGIN, END, CALL = "<think>", "</think>", "<tool_call>"


@dataclass(frozen=True, slots=True)
class ThoughtMarks:
    """Tokens that begin and end reasoning; `call`, if it is one token, begins a tool call."""

    begin: int
    end: int
    call: int | None = None

    @classmethod
    def of(cls, encode: Callable[[str], list[int]]) -> "ThoughtMarks | None":
        """Return the marks of a tokenizer; None if they are not single tokens."""
        begin, end, call = encode(BEGIN), encode(END), encode(CALL)
        if not (len(begin) == len(end) == 1 and begin != end):
            return None
        return cls(begin[0], end[0], call[0] if len(call) == 1 else None)

    def awaited(self, prompt: Sequence[int]) -> int | None:
        """Return the token that will end reasoning; None if the prompt already ends it: by its last mark,
        as in vLLM.
        """
        marks = (token for token in reversed(prompt) if token in (self.begin, self.end))
        return None if next(marks, self.begin) == self.end else self.end


def with_thought(sampling: Sampling, marks: ThoughtMarks, prompt: Sequence[int]) -> Sampling:
    """Return the sampling parameters with the reasoning marks they need, if any."""
    if sampling.constraint is not None:
        sampling = replace(sampling, constraint_after=marks.awaited(prompt))
    if sampling.thinking_token_budget is not None:
        sampling = replace(sampling, thought=(marks.begin, marks.end))
    return sampling


class TokenDecoder(Protocol):
    """Decoder of one request's tokens into text, one after another."""

    def step(self, token_id: int) -> str:
        """Return the text that this token completes; empty in the middle of a character."""
        ...


class TooManyTokens(Exception):
    """The prompt has at least `num_tokens` tokens, more than `most_tokens`."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__(f"at least {num_tokens} tokens")
        self.num_tokens = num_tokens


class TextCodec(Protocol):
    """Encoder and decoder of text, usable from any thread.

    A prompt of more than `most_tokens` tokens raises TooManyTokens, before tokenizing if that is certain.
    """

    def encode(
        self, text: str, most_tokens: int | None = None, add_special_tokens: bool = True
    ) -> list[int]: ...

    def encode_plain(self, text: str) -> list[int]:
        """Return the tokens of a piece of text, without those that the tokenizer adds to a prompt."""
        ...

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        most_tokens: int | None = None,
        reading: Reading = PLAIN_READING,
    ) -> list[int]:
        """Return the tokens of a conversation; raises ValueError if the model has no chat template."""
        ...

    def decoder(
        self,
        prompt_ids: Sequence[int],
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> TokenDecoder:
        """Return a decoder for the tokens after `prompt_ids`."""
        ...

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of all tokens at once."""
        ...

    def token_name(self, token_id: int) -> str | None:
        """Return the vocabulary's spelling of a token; None if there is no such token."""
        ...

    def info(self) -> dict[str, object]:
        """Return the tokenizer's configuration as JSON."""
        ...

    def token_text(self, token_id: int) -> str:
        """Return the text of one token alone, including a leading space and special tokens."""
        ...


class GrammarChecker(Protocol):
    """Compiler of answers' grammars, usable from any thread."""

    def knows(self, constraint: Constraint) -> bool:
        """Return whether checking a constraint takes no time."""
        ...

    def check(self, constraint: Constraint) -> None:
        """Raise ValueError with the reason if a constraint is not supported."""
        ...


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Token ids of a model: their number, and the end tokens.

    If tokens are only counted, all fields are unset. `stop_token_ids` are further end tokens besides
    `eos_token_id`. `grammars` None refuses constraints. With `thought` they apply after the model's
    reasoning.
    """

    eos_token_id: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    size: int | None = None
    grammars: GrammarChecker | None = None
    thought: ThoughtMarks | None = None
