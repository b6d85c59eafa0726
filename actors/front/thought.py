"""Reasoning that a model writes before its answer: between which tokens, and whether it is over."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from actors.core.params.sampling import Sampling
from actors.core.records import dataclass

BEGIN, END = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class ThoughtMarks:
    """The tokens that begin and end reasoning."""

    begin: int
    end: int

    @classmethod
    def of(cls, encode: Callable[[str], list[int]]) -> "ThoughtMarks | None":
        """Those of a tokenizer; None if its marks are not one token each."""
        begin, end = encode(BEGIN), encode(END)
        return cls(begin[0], end[0]) if len(begin) == len(end) == 1 and begin != end else None

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
